"""A folder that holds results: local, NFS, or anything that `pyarrow.fs` opens. Every file appears whole or not at all."""

import contextlib
import os
import time
from pathlib import Path

from pyarrow import fs

from cbp_ray.atomic_files import TEMPORARY, is_forsaken, temporary_name, write_whole

OLD = 2 * 86400.0
"""Seconds after which nobody is still writing a file. Whether a process of another machine is gone can't be known otherwise."""
WHOLE_OBJECT_STORES = {"s3", "gcs", "abfs"}
"""Here an object becomes visible when its upload is complete, and a rename would be a copy."""


class Folder:
    """A folder by its path or URI. Folders below it come into being when something is written.

    Example:
      >>> Folder("results") / "bit_flipping" / "curves"
      Folder('results/bit_flipping/curves')
    """

    def __init__(self, location: str | os.PathLike[str], filesystem: fs.FileSystem | None = None) -> None:
        text = os.fspath(location)
        if filesystem is not None:
            self.filesystem, self.path = filesystem, text
        elif "://" in text:
            self.filesystem, self.path = fs.FileSystem.from_uri(text)
        else:
            self.filesystem, self.path = fs.LocalFileSystem(), os.path.abspath(text)
        self.path = self.path.rstrip("/")
        self._location = text.rstrip("/")

    def __repr__(self) -> str:
        return f"Folder({self._location!r})"

    def __truediv__(self, name: str) -> "Folder":
        below = Folder.__new__(Folder)
        below.filesystem, below.path, below._location = self.filesystem, f"{self.path}/{name}", f"{self._location}/{name}"
        return below

    @property
    def location(self) -> str:
        """The path or URI from which another process opens the same folder."""
        return self._location if "://" in self._location else self.path

    @property
    def local(self) -> Path | None:
        """The folder as a path, if it is on a file system of this machine."""
        return Path(self.path) if isinstance(self.filesystem, fs.LocalFileSystem) else None

    def names(self) -> list[str]:
        """Names of the files in it, in order; none if there is no such folder."""
        if self.local is not None:
            # Many times faster than pyarrow, which asks for the status of every file.
            try:
                with os.scandir(self.path) as entries:
                    return sorted(e.name for e in entries if not e.name.startswith(TEMPORARY) and not e.is_dir())
            except FileNotFoundError:
                return []
        selector = fs.FileSelector(self.path, allow_not_found=True)
        found = self.filesystem.get_file_info(selector)
        return sorted(
            info.base_name for info in found if info.type == fs.FileType.File and not info.base_name.startswith(TEMPORARY)
        )

    def folders(self) -> list[str]:
        """Names of the folders in it, in order."""
        found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def tree(self) -> list[str]:
        """Paths below it of all files in it and in the folders below, in order."""
        if self.local is not None:
            # In one walk, for the same reason as above.
            found = [os.path.join(os.path.relpath(at, self.path), f) for at, _, files in os.walk(self.path) for f in files]
            paths = [os.path.normpath(path) for path in found]
        else:
            selector = fs.FileSelector(self.path, allow_not_found=True, recursive=True)
            infos = self.filesystem.get_file_info(selector)
            paths = [info.path.removeprefix(f"{self.path}/") for info in infos if info.type == fs.FileType.File]
        return sorted(path for path in paths if not path.rpartition("/")[2].startswith(TEMPORARY))

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return bool(self.filesystem.get_file_info(f"{self.path}/{name}").type == fs.FileType.File)

    def read(self, name: str) -> bytes:
        """A file's content.

        Raises:
          FileNotFoundError: if there is none.
        """
        with self.filesystem.open_input_stream(f"{self.path}/{name}") as stream:
            return bytes(stream.read())

    def write(self, name: str, content: bytes, lasting: bool = True) -> None:
        """Writes a file; whatever happens, there is either the old one or the whole new one.

        Args:
          name: name of the file.
          content: all of it.
          lasting: whether it must also survive that the machine dies a moment later; see `write_whole`.
        """
        target = f"{self.path}/{name}"
        if self.filesystem.type_name in WHOLE_OBJECT_STORES:
            with self.filesystem.open_output_stream(target) as stream:
                stream.write(content)
            return
        if self.local is not None:
            write_whole(Path(target), content, lasting)
            return
        temporary = f"{self.path}/{temporary_name()}"
        self.filesystem.create_dir(self.path)
        with self.filesystem.open_output_stream(temporary) as stream:
            stream.write(content)
        self.filesystem.move(temporary, target)

    def append(self, name: str, content: bytes) -> None:
        """Adds to the end of a file, or of one at a path below.

        Raises:
          FileNotFoundError: if there is none.
        """
        if self.local is None:
            # Object stores have no append. Who reads on from where it was finds the same bytes before it.
            self.write(name, self.read(name) + content)
            return
        descriptor = os.open(f"{self.path}/{name}", os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        """Removes a file, or one at a path below; nothing happens if there is none."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(f"{self.path}/{name}")

    def remove_forsaken(self) -> None:
        """Removes what killed processes of this machine began to write, and what others began days ago, in it and below."""
        if self.local is None:
            return
        for at, _, files in os.walk(self.path):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    path = os.path.join(at, name)
                    old = name.startswith(TEMPORARY) and time.time() - os.stat(path).st_mtime > OLD
                    if old or is_forsaken(name):
                        os.unlink(path)

    def size(self) -> int:
        """Bytes of all files in it and below."""
        infos = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True, recursive=True))
        return sum(info.size for info in infos if info.type == fs.FileType.File)

    def remove_all(self) -> None:
        """Removes the folder with all that is in it; nothing happens if there is none."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_dir(self.path)

    def move(self, other: "Folder") -> None:
        """Makes it another folder of the same storage, which must not be there yet."""
        if self.filesystem.type_name in WHOLE_OBJECT_STORES:
            # They have no folders to rename.
            fs.copy_files(self.path, other.path, source_filesystem=self.filesystem, destination_filesystem=other.filesystem)
            self.remove_all()
        else:
            self.filesystem.move(self.path, other.path)
