"""LAS and LAZ clouds, as photogrammetry and GIS exchange them: laspy and lazrs, extra `geo`.

Positions are 32-bit integers times a step, plus an offset, both in the header. The first points decide them:
the step is a power of ten that leaves room for a cloud a thousand times as wide. Colours have 16 bits.
Confidence and the number of views that agree are extra dimensions; normals are left out.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import torch

from gbinet.errors import FormatError, InputError
from gbinet.formats.atomic import atomic_path
from gbinet.formats.laz_sizes import check_chunk_count, check_chunks
from gbinet.formats.optional import optional
from gbinet.formats.reading import open_sized
from gbinet.pointcloud import PointCloud

Array = np.ndarray[Any, Any]

_WITHOUT_COLOUR, _WITH_COLOUR, _VERSION = 6, 7, "1.4"  # point formats of LAS
_MIN_POINTS_FOR_STEP = 1 << 18  # points that are buffered before the step is chosen
_CHUNK = 1 << 20  # points turned into bytes at a time
_HEADROOM = 1e3  # extent that the integers can hold, over that of the first points
_LARGEST = 2**31 - 1
_HEADER = 375  # bytes of the header of version 1.4; 148 fewer in version 1.2
_EXTRA = {"confidence": "confidence", "num_views": "num_views"}  # dimension -> field of PointCloud


def _laspy(path: Path) -> Any:
    if path.suffix.lower() == ".laz":
        optional("lazrs", f"{path.name}: LAZ", "geo")
    return optional("laspy", f"{path.name}: LAS", "geo")


class _Output(io.FileIO):
    """A file that remembers why it could not be written: lazrs does not pass it on."""

    failed: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failed = error
            raise


class LasWriter:
    """Writes a cloud piece by piece. The first piece decides the dimensions."""

    def __init__(self, path: str | Path, crs: str | None = None) -> None:
        self.path, self.crs = Path(path), crs
        self.count = 0
        self._laspy = _laspy(self.path)
        self._buffer: list[PointCloud] = []  # until the step is chosen
        self._writer: Any = None
        self._atomic = atomic_path(self.path)

    def __enter__(self) -> LasWriter:
        self._temporary = self._atomic.__enter__()
        return self

    def append(self, cloud: PointCloud) -> None:
        self.count += len(cloud)
        if self._writer is not None:
            self._write(cloud)
            return
        self._buffer.append(cloud)
        if self.count >= _MIN_POINTS_FOR_STEP:
            self._begin()

    def _begin(self) -> None:
        """Choose offset and step, write the header and the buffered points."""
        first = PointCloud.cat([cloud for cloud in self._buffer if len(cloud)] or self._buffer[:1])
        point_format = _WITHOUT_COLOUR if first.rgb is None else _WITH_COLOUR
        header = self._laspy.LasHeader(point_format=point_format, version=_VERSION)
        header.offsets, step = _grid(first.xyz.double().numpy())
        header.scales = np.full(3, step)
        header.generating_software = "gbinet"
        kinds = {"confidence": "f4", "num_views": "u1"}
        params = self._laspy.ExtraBytesParams
        header.add_extra_dims(
            [params(n, kinds[n]) for n, f in _EXTRA.items() if getattr(first, f) is not None]
        )
        if self.crs is not None:
            header.add_crs(optional("pyproj", "a coordinate system", "geo").CRS.from_user_input(self.crs))
        self._output = _Output(self._temporary, "w")
        with self._system_errors():
            self._writer = self._laspy.open(
                io.BufferedWriter(self._output),
                mode="w",
                header=header,
                do_compress=self.path.suffix.lower() == ".laz",
            )
        self._buffer = []
        self._write(first)

    def _write(self, cloud: PointCloud) -> None:
        header = self._writer.header
        for start in range(0, len(cloud), _CHUNK):
            part = cloud[start : start + _CHUNK]
            record = self._laspy.ScaleAwarePointRecord.zeros(len(part), header=header)
            xyz = part.xyz.double().numpy()
            steps = np.rint((xyz - header.offsets) / header.scales)
            fits = np.abs(steps) <= _LARGEST  # [N, 3]
            if not fits.all():
                far = xyz[~fits.all(axis=1)][0]
                raise InputError(
                    f"{self.path}: the point {' '.join(f'{v:g}' for v in far)} lies too far from the first "
                    "ones for the integers of a LAS file; write .ply, or cut it off with --box"
                )
            record.X, record.Y, record.Z = steps.astype(np.int32).T
            if part.rgb is not None and header.point_format.id == _WITH_COLOUR:
                record.red, record.green, record.blue = (part.rgb.numpy().astype(np.uint16) * 257).T
            for name, field in _EXTRA.items():
                if name in header.point_format.dimension_names:
                    values = getattr(part, field)
                    if values is None:
                        raise InputError(f"{self.path}: earlier points have {field}, this cloud does not")
                    record[name] = values.numpy()
            with self._system_errors():
                self._writer.write_points(record)

    @contextmanager
    def _system_errors(self) -> Iterator[None]:
        """Raise the error of the system in place of lazrs's, which does not say the reason."""
        try:
            yield
        except Exception as error:
            raise self._output.failed or error from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._writer is None:
                if not self._buffer:
                    self._buffer = [PointCloud(torch.zeros(0, 3))]
                self._begin()
            if self._writer is not None:
                with self._system_errors():
                    self._writer.close()
        except BaseException as close_error:
            self._atomic.__exit__(type(close_error), close_error, close_error.__traceback__)
            raise
        self._atomic.__exit__(kind, error, trace)


def _grid(xyz: Array) -> tuple[Array, float]:
    """Offset [3] and step for a cloud that begins with these points."""
    if len(xyz) == 0:
        return np.zeros(3), 0.001
    low, high = xyz.min(axis=0), xyz.max(axis=0)
    if not np.isfinite([low, high]).all():
        raise InputError("a LAS file cannot hold points that are NaN or infinite")
    middle = (low + high) / 2
    reach = max(float((high - low).max()) / 2, 1e-7 * float(np.abs(middle).max()), 1e-9)
    step = 10.0 ** math.ceil(math.log10(_HEADROOM * reach / _LARGEST))
    rounding = 10.0 ** math.ceil(math.log10(reach))  # offsets that people can read
    return np.rint(middle / rounding) * rounding, step


def read_las(path: str | Path) -> PointCloud:
    """Positions (float64), and colour, confidence and number of views where the file has them."""
    path = Path(path)
    parts, part_colours = list[PointCloud](), list[Array]()
    with _opened(path) as (reader, size):
        header = reader.header
        if not header.are_points_compressed and header.point_count * header.point_format.size > size:
            raise FormatError(path, f"cut short: {header.point_count} points announced", f"byte {size}")
        for chunk in reader.chunk_iterator(_CHUNK):
            parts.append(_cloud_of(chunk))
            part_colours.append(_colours_of(chunk))
    cloud = PointCloud.cat(parts or [PointCloud(torch.zeros(0, 3, dtype=torch.float64))])
    if len(cloud) != header.point_count:
        raise FormatError(path, f"cut short: {header.point_count} points announced", f"point {len(cloud)}")
    colours = np.concatenate(part_colours) if part_colours else np.zeros((0, 0), np.uint16)
    if colours.shape[1] == 3:
        has_8_bits = colours.max(initial=0) < 256  # as some programs write, where the format asks for 16
        rgb = (colours if has_8_bits else colours // 257).astype(np.uint8)
        cloud = replace(cloud, rgb=torch.from_numpy(rgb))
    return cloud


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, int]]:
    """laspy's reader of a file, and the file's size. Errors of laspy inside the block become FormatErrors."""
    laspy = _laspy(path)
    with open_sized(path) as (file, size):
        compressed, start = _check_header(path, file, size)
        try:
            with laspy.open(file, closefd=False) as reader:
                if compressed:
                    about = reader.header.vlrs.get("LasZipVlr")[0].record_data
                    check_chunks(path, optional("lazrs", f"{path.name}: LAZ", "geo"), about, start, size)
                yield reader, size
        except (FormatError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the decoder is written in Rust: it panics past Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise FormatError(
                path, f"is not a readable LAS file ({error or type(error).__name__})"
            ) from error


def _check_header(path: Path, file: BinaryIO, size: int) -> tuple[bool, int]:
    """Whether points are compressed, and where they begin. More records or chunks announced than the file can
    hold would keep laspy busy for minutes, or end the process."""
    header = file.read(_HEADER)
    file.seek(0)
    if header[:4] != b"LASF" or len(header) < _HEADER - 148:
        raise FormatError(path, "is not a LAS file: it does not begin with 'LASF' and a header", "byte 0")
    start, records, kind, point_size = struct.unpack_from("<IIBH", header, 96)
    extended = 0
    if header[25] >= 4 and len(header) == _HEADER:  # version 1.4
        extended = struct.unpack_from("<I", header, 243)[0]
    if 54 * records + 60 * extended > size:
        raise FormatError(path, f"announces {records + extended} records in {size} bytes", "header")
    if compressed := bool(kind & 0x80):
        check_chunk_count(path, file, size, start, point_size)
    return compressed, start


def las_crs(path: str | Path) -> str | None:
    """The coordinate system of a LAS file, e.g. EPSG:32615; None where it names none."""
    optional("pyproj", "a coordinate system", "geo")
    with _opened(Path(path)) as (reader, _):
        found = reader.header.parse_crs()
        return None if found is None else ":".join(found.to_authority() or ()) or str(found.to_wkt())


def _cloud_of(chunk: Any) -> PointCloud:
    names = set(chunk.point_format.dimension_names)
    xyz = np.stack([np.asarray(chunk[axis], dtype=np.float64) for axis in "xyz"], axis=-1)
    confidence = (
        torch.from_numpy(np.array(chunk["confidence"], np.float32)) if "confidence" in names else None
    )
    views = None
    if "num_views" in names:
        views = torch.from_numpy(np.asarray(chunk["num_views"]).clip(0, 255).astype(np.uint8))
    return PointCloud(torch.from_numpy(xyz), confidence=confidence, num_views=views)


def _colours_of(chunk: Any) -> Array:
    """[N, 3] uint16; [N, 0] where the file has none."""
    names = [c for c in ("red", "green", "blue") if c in chunk.point_format.dimension_names]
    columns = [np.asarray(chunk[name], dtype=np.uint16) for name in names]
    return np.stack(columns, axis=-1) if len(names) == 3 else np.zeros((len(chunk), 0), np.uint16)
