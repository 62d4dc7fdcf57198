"""Whatever dies, nothing that was finished is lost or run again, and the numbers are those of an undisturbed sweep."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweep_help import Program, assert_bit_equal, kill, snapshot

from cbp_ray.sweeps import load_sweep

pytestmark = pytest.mark.xdist_group("ray")

SWEEP = """
sweep: killed
seeds: 0:32
base: {optimizer: {name: sgd, step_size: 0.01}, problem: {flip_period: 1000}, examples: 400_000, bin_size: 40_000}
groups:
  cbp:
    algorithm:
      name: cbp
      replacement_rate: [1e-5, 2e-5, 3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 8e-5, 9e-5, 1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4, 7e-4]
"""


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.end()


@pytest.mark.timeout(600)
def test_a_sweep_survives_the_death_of_a_worker_of_ctrl_c_of_the_raylet_and_of_the_driver(
    programs: list[Program], tmp_path: Path
) -> None:
    file, storage = tmp_path / "killed.yaml", tmp_path / "results"
    file.write_text(SWEEP)
    stored: dict[str, tuple[int, int]] = {}

    def start() -> Program:
        programs.append(Program(str(file), "--storage", str(storage)))
        return programs[-1]

    def check_stored() -> None:
        """What was stored before the latest start was not started again, and is as it was."""
        assert not {Path(path).stem for path in stored} & set(programs[-1].started())
        after = snapshot(storage)
        assert {path: after[path] for path in stored} == stored
        stored.update(after)

    program = start()
    program.wait_for("trial_done", 2)
    program.kill_descendant("ray::ResourceTrainable")
    program.wait_for("trial_retry")
    program.wait_for("trial_done", 4)
    os.kill(program.process.pid, signal.SIGINT)
    assert program.wait() == 130
    assert program.events[-1]["event"] == "interrupted"
    assert program.errors() == "cbp-ray: interrupted\n"
    check_stored()

    program = start()
    program.wait_for("start")
    # Workers would go on for a while without it: before there are any, nothing can.
    program.kill_descendant("raylet/raylet")
    assert program.wait() == 1
    assert program.errors() == "cbp-ray run: Ray's raylet died; run the same command again to go on\n"
    check_stored()

    program = start()
    program.wait_for("trial_done", 2)
    kill(program.process.pid)
    program.wait()
    check_stored()
    program.end()

    program = start()
    assert program.wait() == 0
    check_stored()
    assert_bit_equal(load_sweep(file), storage)

    counts = Counter(trial for each in programs for trial in each.done())
    assert max(counts.values()) == 1
    # A worker that died was in one trial; the driver and Ctrl-C cut short at most two each.
    runs = sum(len(each.started()) for each in programs)
    assert 16 <= runs <= 16 + 1 + 2 * 2
    assert not list((storage / "killed").rglob(".tmp-*"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_second_ctrl_c_stops_at_once(programs: list[Program], tmp_path: Path) -> None:
    file, storage = tmp_path / "killed.yaml", tmp_path / "results"
    file.write_text(SWEEP.replace("400_000", "40_000_000"))
    programs.append(Program(str(file), "--storage", str(storage)))
    program = programs[0]
    program.wait_for("trial_start", 2)
    os.kill(program.process.pid, signal.SIGINT)
    program.wait_for("progress", 1)
    os.kill(program.process.pid, signal.SIGINT)
    assert program.wait(30) == 130
