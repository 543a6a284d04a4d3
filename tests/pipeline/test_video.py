"""Videos: the frames that are kept are sharp, move on, and cover the whole way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from gbinet.errors import FormatError, GBiNetError, InputError, SceneError
from gbinet.formats.image import read_image, write_image
from gbinet.formats.video import is_video_name, read_frames
from gbinet.pipeline.video import FrameTrack, choose_frames, track_of, video_photos

av = pytest.importorskip("av")


def wall(width: int = 1200, height: int = 240) -> Image.Image:
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (height // 6, width // 6, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def write_video(path: Path, frames: list[np.ndarray], rate: int = 30) -> Path:
    with av.open(str(path), mode="w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = frames[0].shape[1], frames[0].shape[0], "yuv420p"
        stream.bit_rate = 8_000_000
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


def walk(steps: list[int], blurred: set[int] = frozenset()) -> list[np.ndarray]:  # type: ignore[assignment]
    """A camera that moves along a wall, by so many pixels from frame to frame."""
    picture, frames, at = wall(), [], 0
    for number, step in enumerate(steps):
        at += step
        frame = picture.crop((at, 0, at + 320, 240))
        if number in blurred:
            frame = frame.filter(ImageFilter.GaussianBlur(3))
        frames.append(np.asarray(frame))
    return frames


def test_the_way_is_measured() -> None:
    track = track_of(walk([0] + [3] * 60))
    assert track.moved[-1] == pytest.approx(180 / 320, rel=0.15)
    assert (np.diff(track.moved) >= 0).all()
    still = track_of(walk([0] * 20))
    assert still.moved[-1] < 0.01


def test_frames_are_sharp_and_spread_over_the_way(tmp_path: Path) -> None:
    blurred = set(range(0, 80, 3)) | set(range(1, 80, 3))
    standing = [0] * 15 + [6] * 50 + [0] * 15  # stands, walks, stands
    video = write_video(tmp_path / "clip.mp4", walk(standing, blurred))
    folder = video_photos(video, tmp_path / "out", 20)
    assert folder == tmp_path / "out" / "frames" / "clip"
    record = json.loads((folder / "video.json").read_text())
    assert 12 <= len(record["photos"]) <= 20 and record["photos"][0] == "frame_0001.jpg"
    sharp = [number not in blurred for number in record["numbers"]]
    assert np.mean(sharp) > 0.8
    inside = [n for n in record["numbers"] if 12 <= n <= 68]
    assert len(inside) >= len(record["numbers"]) - 2  # standing still gives a photo at most, at each end
    assert read_image(folder / "frame_0001.jpg").shape == (240, 320, 3)
    before = (folder / "frame_0001.jpg").stat().st_mtime_ns
    assert video_photos(video, tmp_path / "out", 20) == folder  # taken over
    assert (folder / "frame_0001.jpg").stat().st_mtime_ns == before
    (folder / "mine.txt").write_text("mine")
    video_photos(video, tmp_path / "out", 6)
    assert len(list(folder.glob("*.jpg"))) <= 6 and (folder / "mine.txt").exists()


def test_frames_of_a_killed_run_do_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = write_video(tmp_path / "clip.mp4", walk([6] * 60))
    written: list[Path] = []

    def killed(path: Path, *arguments: object, **options: object) -> Path:
        if len(written) == 9:
            raise KeyboardInterrupt
        written.append(path)
        return write_image(path, *arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("gbinet.pipeline.video.write_image", killed)
        video_photos(video, tmp_path / "out", 20)
    folder = video_photos(video, tmp_path / "out", 6)
    record = json.loads((folder / "video.json").read_text())
    assert sorted(path.name for path in folder.glob("*.jpg")) == record["photos"] and len(written) == 9
    (folder / "video.json").write_text(json.dumps({**record, "photos": 5}))  # damaged
    assert json.loads((video_photos(video, tmp_path / "out", 6) / "video.json").read_text()) == record


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=200), st.integers(2, 60), st.integers(0, 100))
def test_never_more_than_asked_for_and_in_order(steps: list[float], most: int, seed: int) -> None:
    moved = np.cumsum(steps)
    track = FrameTrack(moved, np.random.default_rng(seed).random(len(steps)))
    chosen = choose_frames(track, most)
    assert len(chosen) <= most and chosen == sorted(set(chosen))
    assert all(0 <= n < len(steps) for n in chosen)


def test_files_that_are_not_videos_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video" * 100)
    with pytest.raises(FormatError, match="cannot be read as a video; convert it"):
        list(read_frames(tmp_path / "a.mp4"))
    still = write_video(tmp_path / "still.mp4", walk([0] * 10))
    with pytest.raises(SceneError, match="nothing moves"):
        video_photos(still, tmp_path / "out", 10)
    with pytest.raises(InputError, match="--frames"):
        video_photos(still, tmp_path / "out", 1)
    whole = still.read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="cut"):
        list(read_frames(tmp_path / "cut.mp4"))
    assert is_video_name(Path("A.MOV")) and not any(is_video_name(Path(n)) for n in (".a.mp4", "a.jpg"))
    import sys

    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(GBiNetError, match=r"gbinet\[video\]"):
        list(read_frames(still))
