"""Which files a file may name: those of its own folder, and of the folder that the user gave for photos.

Links on the disk are followed: whoever made the folder put them there. `..` and absolute paths inside a model
or JSON file are not, unless they end in one of these folders.
"""

from __future__ import annotations

from pathlib import Path

from gbinet.errors import FormatError
from gbinet.formats.reading import is_file
from gbinet.names import printable


class Inside:
    """The folders that names from a scene's files may lead to."""

    def __init__(self, *folders: Path, images: Path | None = None) -> None:
        self.images = images
        self.folders = folders if images is None else (*folders, images)

    def find_photo(self, base: Path, name: str) -> Path:
        """The photo that `name` means: below the given folder of photos, if there is one, or below `base`."""
        parts = [part for part in Path(name).parts if part not in ("/", "..")]
        if self.images is not None:
            # `images/left/01.jpg` may be `left/01.jpg` there.
            for first in range(len(parts)):
                if is_file(path := self.images.joinpath(*parts[first:])):
                    return path
        return self.check(base / name)

    def check(self, path: Path) -> Path:
        """The same path, or a FormatError that says how to allow it."""
        if not self.contains(path):
            raise FormatError(
                path,
                f"lies outside {printable(self.folders[0])} and is not read; "
                f"if you trust what names it, allow its folder with --images {printable(path.parent)}",
            )
        return path

    def contains(self, path: Path) -> bool:
        for folder in self.folders:
            if path.is_relative_to(folder) and ".." not in path.relative_to(folder).parts:
                return True
        try:
            end = path.resolve()
            return any(end.is_relative_to(folder.resolve()) for folder in self.folders)
        except (OSError, ValueError, RuntimeError):  # no name of a file, or a circle of links
            return False
