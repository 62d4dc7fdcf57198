"""Files that are damaged from outside, and two of a kind at once: what is damaged is named and made again, never used."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_help import TRIALS, Scene, kill, scene, wait_until

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600), pytest.mark.slow]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    """Turns some bytes in the middle around; the end, which says how long everything is, stays."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(byte ^ 0xFF for byte in content[middle : middle + 64])
    path.write_bytes(bytes(content))


def files(made: Scene, folder: str) -> list[Path]:
    return sorted((made.storage / "faults" / folder).iterdir())


@pytest.mark.parametrize("damage", [cut, empty])
@pytest.mark.parametrize("folder", ["curves", "runs"])
def test_a_file_that_was_cut_is_named_and_made_again(damage: Callable[[Path], None], folder: str, tmp_path: Path) -> None:
    with scene(tmp_path, examples=20_000) as made:
        made.finish()
        victim = files(made, folder)[1]
        damage(victim)
        said = subprocess.run([sys.executable, "-m", "cbp_ray", "status", "--storage", str(made.storage)], capture_output=True)
        assert victim.stem in said.stdout.decode() + said.stderr.decode()
        program = made.finish()
        assert program.done() == [victim.stem]
        made.check(remade=1)


def test_a_garbled_file_is_never_used(tmp_path: Path) -> None:
    with scene(tmp_path, examples=20_000) as made:
        made.finish()
        victim = files(made, "curves")[1]
        garble(victim)
        storage = ["--storage", str(made.storage)]
        found = subprocess.run([sys.executable, "-m", "cbp_ray", "verify", *storage, "--remove"], capture_output=True)
        assert victim.name in (found.stdout + found.stderr).decode() and not victim.exists()
        assert made.finish().done() == [victim.stem]
        made.check(remade=1)


@pytest.mark.parametrize("damage", [cut, empty, garble])
def test_a_damaged_checkpoint_is_not_used(damage: Callable[[Path], None], tmp_path: Path) -> None:
    with scene(tmp_path, examples=20_000_000) as made:
        made.environment = {"CBP_RAY_CHECKPOINT_SECONDS": "0"}
        program = made.start()
        program.wait_for("trial_start", 2)
        wait_until(lambda: len(list(made.storage.glob("*/checkpoints/*.npz"))) >= 2, 120)
        kill(program.process.pid)
        program.wait()
        wait_until(lambda: not made.processes(), 95)
        for path in files(made, "checkpoints"):
            damage(path)
        made.finish()
        made.check()


def test_the_same_sweep_twice_at_once(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        first, second = made.start(), made.start()
        assert first.wait() == 0 and second.wait() == 0
        # Both may have run a trial before one of them stored it; one file holds it.
        assert len(files(made, "curves")) == TRIALS
        made.check(remade=TRIALS)


def test_boards_that_are_deleted_come_back(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        program = made.start()
        program.wait_for("trial_done", 2)
        shutil.rmtree(made.storage / "faults" / "tensorboard")
        assert program.wait() == 0, program.story()
        made.check()
        shutil.rmtree(made.storage / "faults" / "tensorboard")
        made.finish()
        runs = list((made.storage / "faults" / "tensorboard").rglob("events.out.tfevents.*"))
        assert len({path.parent for path in runs}) == TRIALS


def test_boards_that_cannot_be_written_stop_nothing(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        (made.storage / "faults").mkdir(parents=True)
        (made.storage / "faults" / "tensorboard").write_text("a file where a folder should be")
        program = made.finish()
        warnings = [event for event in program.events if event["event"] == "warning"]
        assert any("ensor" in json.dumps(warning) for warning in warnings)
        os.remove(made.storage / "faults" / "tensorboard")
        made.check()
