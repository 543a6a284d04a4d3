"""Which files the paths in a scene's files may lead to: its own folder, and the user's folder of photos.

Symbolic links are followed: whoever made the folder put them there. `..` and absolute paths in a model or
JSON file are refused, unless they end in one of these folders.
"""

from __future__ import annotations

from pathlib import Path

from gbinet.errors import FormatError
from gbinet.formats.reading import is_file
from gbinet.names import printable


class AllowedFolders:
    """Resolves paths from a scene's files, and refuses those that lead out of the given folders."""

    def __init__(self, *folders: Path, images: Path | None = None) -> None:
        self.images = images
        self.folders = folders if images is None else (*folders, images)

    def find_photo(self, base: Path, name: str) -> Path:
        """The photo that a file calls `name`: in the user's folder of photos if it is there, else in base."""
        parts = [part for part in Path(name).parts if part not in ("/", "..")]
        if self.images is not None:
            # What a file calls `images/left/01.jpg` may be `left/01.jpg` there.
            for first in range(len(parts)):
                if is_file(path := self.images.joinpath(*parts[first:])):
                    return path
        return self.check(base / name)

    def check(self, path: Path) -> Path:
        """Return the path; raise a FormatError that says how to allow it if it lies outside."""
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
            resolved = path.resolve()
            return any(resolved.is_relative_to(folder.resolve()) for folder in self.folders)
        except (OSError, ValueError, RuntimeError):  # not a file name, or a cycle of links
            return False
