"""Files that appear whole or not at all."""

import os
import platform
import uuid
from pathlib import Path

TEMPORARY = ".tmp-"
"""How the name of a file begins that is not whole yet."""


def temporary_name() -> str:
    """A new name for such a file. It says which process writes it."""
    return f"{TEMPORARY}{uuid.uuid4().hex}-{os.getpid()}-{platform.node()}"


def is_forsaken(name: str) -> bool:
    """Whether a file is one that a process of this machine began to write, which is gone by now."""
    if not name.startswith(TEMPORARY):
        return False
    _, _, writer = name.removeprefix(TEMPORARY).partition("-")
    pid, _, node = writer.partition("-")
    if node != platform.node() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False  # somebody else's, and no number of a process
    return False


def sync_folder(folder: Path) -> None:
    """Waits until the disk has the names of a folder's files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # a file system that has no such thing
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes, lasting: bool = True) -> None:
    """Writes a file, and its folder if there is none; whatever happens, there is either the old file or the whole new one.

    Args:
      path: the file.
      content: all of it.
      lasting: whether it must also survive that the machine dies a moment later, for which the disk has to be waited for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(temporary_name())
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
            if lasting:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, path)
        if lasting:
            sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
