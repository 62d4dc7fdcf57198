"""Storage that is full, read-only, slow or gone for a while, and a clock that is set back."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_help import remount, scene, small_disk

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600), pytest.mark.slow]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")

PATIENCE = {"CBP_RAY_STORAGE_SECONDS": "2"}
SLOW = """
import os, time
replace = os.replace
def slowly(*arguments, **options):
    time.sleep(1.5)
    return replace(*arguments, **options)
os.replace = slowly
"""
BACK = """
import time
clock, begun = time.time, time.monotonic()
time.time = lambda: clock() - (7200 if time.monotonic() - begun > 4 else 0)
"""


@pytest.fixture
def everywhere(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Python code that every process of a scene runs when it starts: given as variables of its environment."""

    def make(code: str) -> dict[str, str]:
        folder = tmp_path / "everywhere"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(code)
        return {"PYTHONPATH": str(folder)}

    return make


@needs_root
def test_a_full_storage_is_said_and_with_room_again_the_sweep_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "300k") as disk, scene(tmp_path, storage=disk / "results") as made:
        made.environment |= PATIENCE
        program = made.start()
        assert program.wait() == 1
        errors = program.errors()
        assert "No space left" in errors + str(program.events) and "Traceback" not in errors and errors.count("\n") <= 1, errors
        before = made.stored()
        remount(disk, "size=50m")
        made.finish()
        assert before.items() <= made.stored().items()
        made.check()


@needs_root
def test_a_storage_that_becomes_read_only_is_said_and_the_sweep_goes_on_later(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "50m") as disk, scene(tmp_path, storage=disk / "results") as made:
        made.environment |= PATIENCE
        program = made.start()
        program.wait_for("trial_done", 4)
        remount(disk, "ro")
        assert program.wait() == 1
        errors = program.errors()
        assert "Read-only" in errors + str(program.events) and "Traceback" not in errors and errors.count("\n") <= 1, errors
        before = made.stored()
        # While it is so, nothing starts.
        again = made.start()
        assert again.wait() == 2 and again.errors().count("\n") == 1
        remount(disk, "rw")
        made.finish()
        assert before.items() <= made.stored().items()
        made.check()


@needs_root
def test_trials_that_are_done_wait_for_a_storage_that_is_read_only_for_a_while(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "50m") as disk, scene(tmp_path, storage=disk / "results") as made:
        program = made.start()
        program.wait_for("trial_start", 2)
        remount(disk, "ro")
        # It says so; what has come to its end meanwhile is not lost.
        program.wait_for("warning")
        time.sleep(5)
        remount(disk, "rw")
        assert program.wait() == 0, program.story()
        assert not [event for event in program.events if event["event"] == "trial_retry"]
        made.check()


def test_a_storage_that_is_gone_for_a_while(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        program = made.start()
        program.wait_for("trial_done", 2)
        away = tmp_path / "away"
        os.rename(made.storage, away)
        # What was written meanwhile is in a new folder of the old name, or nowhere.
        program.wait()
        if made.storage.exists():
            os.rename(made.storage, tmp_path / "meanwhile")
        os.rename(away, made.storage)
        made.finish()
        made.check(remade=6)


def test_a_slow_storage_only_takes_longer(tmp_path: Path, everywhere: Callable[[str], dict[str, str]]) -> None:
    with scene(tmp_path) as made:
        made.environment |= everywhere(SLOW)
        made.finish()
        made.check()


@pytest.mark.parametrize("part", ["worker", "raylet"])
def test_a_clock_that_is_set_back_changes_nothing(
    part: str, tmp_path: Path, everywhere: Callable[[str], dict[str, str]]
) -> None:
    with scene(tmp_path, examples=6_000_000) as made:
        made.environment |= everywhere(BACK)
        program = made.start()
        program.wait_for("trial_done", 2)
        told = sum(event["event"] == "progress" for event in program.events)
        program.kill_descendant({"worker": "ray::ResourceTrainable", "raylet": "raylet/raylet"}[part])
        # That Ray died is noticed, whatever the clock says; the next start goes on.
        assert program.wait(100) == (0 if part == "worker" else 1), program.story()
        if part == "worker":
            assert sum(event["event"] == "progress" for event in program.events) > told
        else:
            made.finish()
        made.check()


def test_results_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """The driver is killed again and again while it writes what it can write in a hurry."""
    with scene(tmp_path, examples=20_000) as made:
        for number in range(2):
            program = made.start()
            program.wait_for("trial_done", number + 1)
            program.end()
        made.finish()
        made.check()
