"""The temporary folder of a sweep goes with it, also if it was killed."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cbp_ray.sweeps import scratch
from cbp_ray.sweeps.scratch import scratch_folder

CODE = "from cbp_ray.sweeps.scratch import *\nwith scratch_folder() as folder: print(folder, flush=True); input()"


def test_a_folder_that_a_killed_process_left_is_removed_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = [subprocess.Popen([sys.executable, "-c", CODE], stdin=-1, stdout=-1, text=True) for _ in range(2)]
    lives, killed = [Path(other.stdout.readline().strip()) for other in others if other.stdout is not None]
    others[1].kill()
    others[1].wait()
    with scratch_folder():
        assert lives.exists() and killed.exists(), "its owner may not have locked it yet"
    monkeypatch.setattr(scratch, "NEW", 0)
    with scratch_folder() as mine:
        assert lives.exists() and not killed.exists()
        assert Path(mine).parent == tmp_path
    others[0].communicate("\n")
    assert not lives.exists() and not Path(mine).exists()
