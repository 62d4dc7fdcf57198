"""A temporary folder for what Tune keeps for itself, of which nothing is left for long, whoever is killed."""

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX, LOCK = "cbp-ray-tune-", "lock"
NEW = 60.0
"""Seconds in which a folder is left alone: its owner may not have locked it yet."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """A folder for the length of a sweep. Those that killed processes have left behind are removed first."""
    remove_forsaken_scratch()
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder, FileLock(f"{folder}/{LOCK}"):
        yield folder


def remove_forsaken_scratch() -> None:
    """Removes folders of this user whose lock nobody holds: the system lets go of it when a process dies."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # What is not there any more was removed by another process at the same moment.
        with contextlib.suppress(OSError, Timeout):
            about = folder.lstat()
            # A clock that was set back since makes it no newer than a minute.
            is_new = abs(time.time() - about.st_ctime) < NEW
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not is_new:
                with FileLock(folder / LOCK, blocking=False):
                    shutil.rmtree(folder, ignore_errors=True)
