"""Files that are damaged from outside, and two of a kind at once: what is damaged is named and made again, never used."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fault_help import TRIALS, Scene, kill, remount, scene, small_disk, wait_until, workers

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]


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


def test_files_that_were_damaged_are_named_and_made_again_and_never_used(tmp_path: Path) -> None:
    with scene(tmp_path, examples=20_000) as made:
        made.finish()
        curves, runs = files(made, "curves"), files(made, "runs")
        victims = [curves[0], curves[1], runs[2], runs[3], curves[4]]
        for path, damage in zip(victims, (cut, empty, cut, empty, garble), strict=True):
            damage(path)
        # What was cut short shows at a look; what only holds other bytes shows when it is read.
        told = command("status", "--storage", str(made.storage))
        assert all(path.stem in told for path in victims[:4]) and curves[5].stem not in told
        told = command("plot", str(made.file), "--storage", str(made.storage))
        assert "Traceback" not in told and any(path.stem in told for path in victims)
        told = command("verify", "--storage", str(made.storage), "--remove")
        assert all(path.name in told and not path.exists() for path in victims) and curves[5].exists()
        assert sorted(made.finish().done()) == sorted(path.stem for path in victims)

        # The next start alone says it as well, and needs no help, also where only other bytes are in the place of some.
        victims = [curves[1], runs[2], curves[3], runs[4]]
        for path, damage in zip(victims, (cut, empty, garble, garble), strict=True):
            damage(path)
        program = made.finish()
        said = json.dumps([event for event in program.events if event["event"] == "warning"])
        assert all(path.stem in said for path in victims)
        assert sorted(program.done()) == sorted(path.stem for path in victims)
        made.check(remade=9)


def command(*arguments: str) -> str:
    """What a command of ours prints."""
    done = subprocess.run([sys.executable, "-m", "cbp_ray", *arguments], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_damaged_checkpoints_are_not_used(tmp_path: Path) -> None:
    with scene(tmp_path, examples=6_000_000) as made:
        made.environment |= {"CBP_RAY_CHECKPOINT_SECONDS": "0"}
        damaged: list[set[str]] = []
        for damages in ((cut, empty), (garble, garble)):
            before = set(made.storage.glob("*/curves/*.parquet"))
            program = made.start()
            wait_until(lambda: len(checkpoints(made)) >= 2, 200)
            kill(program.process.pid)
            program.wait()
            # Ray's workers live on for a moment, and may store what they are at.
            wait_until(lambda: not workers(made), 95)
            victims = checkpoints(made)[:2]
            for path, damage in zip(victims, damages, strict=False):
                damage(path)
            assert victims and before <= set(made.storage.glob("*/curves/*.parquet"))
            damaged.append({path.stem for path in victims})
        made.finish()
        # Those of the first round were named by the second start, unless it was killed before it came to them.
        named = json.dumps([event for event in made.programs[-1].events if event["event"] == "warning"])
        assert all(name in named for name in damaged[1])
        made.check()


def checkpoints(made: Scene) -> list[Path]:
    """Checkpoints of trials that are not stored."""
    found = sorted(made.storage.glob("*/checkpoints/*.npz"))
    return [path for path in found if not (made.storage / "faults" / "curves" / f"{path.stem}.parquet").exists()]


@pytest.mark.slow
def test_the_same_sweep_twice_at_once(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        first, second = made.start(), made.start()
        assert first.wait() == 0 and second.wait() == 0
        # Both may have run a trial before one of them stored it; one file holds it.
        assert len(files(made, "curves")) == TRIALS
        made.check(remade=TRIALS)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")
@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_boards_on_a_disk_that_fails_stop_nothing(trouble: str, tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        (made.storage / "faults").mkdir(parents=True)
        with small_disk(made.storage / "faults" / "tensorboard", "12k") as disk:
            if trouble == "read-only":
                remount(disk, "ro")
            program = made.finish()
            warnings = [event for event in program.events if event["event"] == "warning"]
            assert any("ensor" in json.dumps(warning) for warning in warnings)
        made.finish()
        made.check()


def test_boards_that_cannot_be_written_stop_nothing(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        (made.storage / "faults").mkdir(parents=True)
        (made.storage / "faults" / "tensorboard").write_text("a file where a folder should be")
        program = made.finish()
        warnings = [event for event in program.events if event["event"] == "warning"]
        assert any("ensor" in json.dumps(warning) for warning in warnings)
        os.remove(made.storage / "faults" / "tensorboard")
        made.check()
