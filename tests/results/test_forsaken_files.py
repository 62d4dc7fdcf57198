"""What a killed process had begun to write is removed; what a living one writes is not."""

import os
import platform
import subprocess
import sys
from pathlib import Path

from cbp_ray.atomic_files import TEMPORARY, is_forsaken, temporary_name
from cbp_ray.results.storage import Folder

KILLED = """
import os, signal
from pathlib import Path
from cbp_ray.atomic_files import write_whole
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_whole(Path("curves") / "a.parquet", b"half")
"""


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False).returncode < 0
    mine, whole = tmp_path / "curves" / temporary_name(), tmp_path / "curves" / "b.parquet"
    elsewhere = tmp_path / f"{TEMPORARY}0-999999999-another.{platform.node()}"
    odd = [tmp_path / f"{TEMPORARY}{rest}" for rest in ("", "0", "0-x-y", f"0--1-{platform.node()}")]
    for path in (mine, whole, elsewhere, *odd):
        path.write_bytes(b"something")
    assert len(list((tmp_path / "curves").iterdir())) == 4
    Folder(tmp_path).remove_forsaken()
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted([mine, whole, elsewhere, *odd])
    # What another machine began days ago, nobody is still writing.
    for path in (elsewhere, whole):
        os.utime(path, (0, 0))
    Folder(tmp_path).remove_forsaken()
    assert not elsewhere.exists() and mine.exists() and whole.exists()


def test_the_writer_of_a_file_is_in_its_name() -> None:
    name = temporary_name()
    assert name.startswith(TEMPORARY) and str(os.getpid()) in name and not is_forsaken(name)
    assert is_forsaken(name.replace(f"-{os.getpid()}-", "-4194304000-")) is False  # no number of a process
