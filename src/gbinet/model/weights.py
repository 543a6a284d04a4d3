"""Weights on disk: our safetensors files, and published .ckpt files. Nothing in them can execute code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from gbinet.errors import FormatError, InputError, WeightsError, check_share
from gbinet.formats.atomic import atomic_path
from gbinet.formats.reading import is_file, parse_json
from gbinet.model.calibration import Calibration
from gbinet.model.config import GBiNetConfig

if TYPE_CHECKING:
    from gbinet.model.gbinet import GBiNet

Network = TypeVar("Network", bound="GBiNet")
BUNDLED = Path(__file__).parent.parent / "weights"  # folder inside the package
DEFAULT = "gbinet"
FORMAT = "1"  # version of our file layout
PUBLISHED_CONFIDENCE = 0.4  # min_confidence of published weights, whose confidence is never below 0.25

# Published names -> ours. Applied in order to each key without its 'module.' prefix.
_RENAMES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"norm_layer\.", "norm."),
    (r"^img_feature\.conv(\d)\.", r"encoder.bottom_up.\1."),
    (r"^img_feature\.conv_inner\.([123])\.", lambda m: f"encoder.lateral.{int(m[1]) - 1}."),
    (r"^img_feature\.conv_out\.(\d)\.conv_offset\.", r"encoder.output.\1.offset."),
    (r"^img_feature\.conv_out\.(\d)\.", r"encoder.output.\1."),
    (r"^cost_network\.(\d)\.conv0\.", r"regularisers.\1.entry."),
    (r"^cost_network\.(\d)\.conv([1-6])\.", lambda m: _down_block(m)),
    (r"^cost_network\.(\d)\.deconv([789])\.", lambda m: f"regularisers.{m[1]}.up.{int(m[2]) - 7}."),
    (r"^cost_network\.(\d)\.prob\.", r"regularisers.\1.logit."),
    (r"^view_weight_nets\.(\d)\.conv([01])\.", r"view_weights.\1.hidden.\2."),
    (r"^view_weight_nets\.(\d)\.conv2\.", r"view_weights.\1.output."),
)


def _down_block(match: re.Match[str]) -> str:
    level, half = divmod(int(match[2]) - 1, 2)
    return f"regularisers.{match[1]}.down.{level}.{half}."


def our_name(published: str) -> str:
    """Our name of a published key: 'module.cost_network.0.prob.weight' -> 'regularisers.0.logit.weight'."""
    name = published.removeprefix("module.")
    for pattern, replacement in _RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


@dataclass(frozen=True)
class Header:
    """What the header of a weights file contains."""

    config: GBiNetConfig
    min_confidence: float | None = None  # recommended for fusion of its depth maps
    calibration: Calibration | None = None  # of its confidence


def load(weights: str | Path | None, network: type[Network]) -> Network:
    """Build the network of this class that a weights file describes, in eval mode on the CPU."""
    path = find(weights)
    if path.suffix == ".safetensors":
        metadata, tensors = _read_ours(path)
        header = _header(path, metadata, network.config_type)
    else:
        header, tensors = Header(network.config_type(), PUBLISHED_CONFIDENCE), _read_published(path)
    model = _build(path, network, header.config, tensors)
    model.weights_file, model.min_confidence = path.name, header.min_confidence
    model.calibration = header.calibration
    return model


def find(weights: str | Path | None) -> Path:
    """The weights file: a path, or the name of bundled weights; None = the default ones."""
    if weights is not None and is_file(Path(weights)):
        return Path(weights)
    names = sorted(p.stem for p in BUNDLED.glob("*.safetensors"))
    name = DEFAULT if weights is None else str(weights)
    if name in names:
        return BUNDLED / f"{name}.safetensors"
    bundled = f"bundled weights: {', '.join(names)}" if names else "no weights are bundled"
    raise WeightsError(f"no weights '{name}': neither a file nor a name ({bundled})")


def save(model: GBiNet, path: Path, half: bool = False) -> Path:
    """Write weights, configuration and versions.

    Tensors keep their type, so that a round trip is bit for bit; `half` stores the kernels of convolutions in
    float16 (half the file; batch norms and biases stay as they are). Loading gives float32 either way.
    """
    from gbinet import __version__

    if path.suffix != ".safetensors":  # by which `load` tells our files from published ones
        raise InputError(f"{path}: weights are saved as .safetensors; give the file that suffix")
    metadata = {
        "format": FORMAT,
        "gbinet_version": __version__,
        "config": json.dumps(model.config.to_dict()),
        **_confidence_entries(model.min_confidence, model.calibration),
    }
    tensors = {k: v.detach().contiguous().cpu() for k, v in model.state_dict().items()}
    if half:
        tensors = {k: v.half() if v.dim() > 1 else v for k, v in tensors.items()}
    _write_ours(path, metadata, tensors)
    return path


def set_confidence(path: Path, min_confidence: float, calibration: Calibration) -> None:
    """Replace the entries about confidence in the header of a file of ours; all else stays as it is."""
    metadata, tensors = _read_ours(path)
    _write_ours(path, metadata | _confidence_entries(min_confidence, calibration), tensors)


def _confidence_entries(min_confidence: float | None, calibration: Calibration | None) -> dict[str, str]:
    """Entries of a header about confidence."""
    entries = {} if min_confidence is None else {"min_confidence": repr(min_confidence)}
    return entries if calibration is None else {**entries, "calibration": json.dumps(calibration.to_dict())}


def _write_ours(path: Path, metadata: dict[str, str], tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save as to_bytes

    with atomic_path(path) as temporary:
        temporary.write_bytes(to_bytes(tensors, metadata))  # save_file restricts it to its owner


def _read_ours(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata in the header, and the tensors, as they are stored."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # not a mapping
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is not a readable safetensors file: {error}") from error
    if "config" not in metadata:
        raise WeightsError(f"{path} was not written by gbinet: its header holds no configuration")
    if metadata.get("format") != FORMAT:
        raise WeightsError(f"{path} has layout version {metadata.get('format')}, this gbinet reads {FORMAT}")
    return metadata, tensors


def _header(path: Path, metadata: dict[str, str], config_type: type[GBiNetConfig]) -> Header:
    try:
        config = config_type.from_dict(parse_json(path, metadata["config"]))
    except (ValueError, TypeError, OverflowError, FormatError, InputError) as error:
        raise WeightsError(f"{path}: the configuration in its header cannot be used: {error}") from error
    stored = metadata.get("min_confidence")
    try:
        min_confidence = None if stored is None else check_share("min_confidence", float(stored))
    except (ValueError, InputError) as error:
        raise WeightsError(f"{path}: the min_confidence in its header cannot be used: {error}") from error
    stored = metadata.get("calibration")
    try:
        calibration = None if stored is None else Calibration.from_dict(parse_json(path, stored))
    except (ValueError, TypeError, OverflowError, FormatError, InputError) as error:
        raise WeightsError(f"{path}: the calibration in its header cannot be used: {error}") from error
    return Header(config, min_confidence, calibration)


def _read_published(path: Path) -> dict[str, Tensor]:
    """A dict saved with torch.save, weights under 'model' (or at the top), keys with or without 'module.'."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # on random bytes, an unpickler may raise anything; its message helps nobody
        raise WeightsError(
            f"{path} is neither a .safetensors file of gbinet nor a checkpoint of torch.save that holds "
            "tensors and plain values alone (others could execute code); or it is cut short"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]
    if not isinstance(content, dict) or not all(_is_weight(k, v) for k, v in content.items()):
        raise WeightsError(
            f"{path} holds no dictionary of names and plain tensors (looked at the top and under 'model')"
        )
    return {our_name(key): value for key, value in content.items()}


def _is_weight(name: object, value: object) -> bool:
    """A tensor that holds its own numbers; sparse, quantised and empty (meta) ones do not."""
    if not isinstance(name, str) or not isinstance(value, Tensor):
        return False
    return value.layout == torch.strided and not (value.is_meta or value.is_quantized or value.is_nested)


def _build(path: Path, network: type[Network], config: GBiNetConfig, tensors: dict[str, Tensor]) -> Network:
    try:
        with torch.device("meta"):  # shapes alone: a file cannot make us allocate more than it holds
            expected = network(config).state_dict()
    except (RuntimeError, TypeError, ValueError) as error:
        raise WeightsError(f"{path} describes a network that cannot be built: {error}") from error
    problems = [f"missing: {k}" for k in expected if k not in tensors]
    problems += [f"unexpected: {k}" for k in tensors if k not in expected]
    problems += [
        f"shape of {k}: {list(tensors[k].shape)} in the file, {list(v.shape)} in the network"
        for k, v in expected.items()
        if k in tensors and tensors[k].shape != v.shape
    ]
    if problems:
        shown = problems[:12] + ([f"and {len(problems) - 12} more"] if len(problems) > 12 else [])
        raise WeightsError(f"{path} does not fit the network: {'; '.join(shown)}")
    model = network(config)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise WeightsError(f"{path} does not fit the network: {error}") from error
    return model.eval()
