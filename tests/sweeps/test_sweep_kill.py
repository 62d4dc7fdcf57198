"""Whatever dies, nothing that was finished is lost or run again, and the numbers are those of an undisturbed sweep."""

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweep_help import Program, assert_bit_equal, kill, snapshot

from cbp_ray.results import Store
from cbp_ray.sweeps import load_sweep
from cbp_ray.sweeps.status import statuses

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


class Victim:
    """A sweep that is started again and again in the same storage."""

    def __init__(self, folder: Path) -> None:
        self.file, self.storage = folder / "killed.yaml", folder / "results"
        self.file.write_text(SWEEP)
        self.programs: list[Program] = []
        self.stored: dict[str, tuple[int, int]] = {}

    def start(self) -> Program:
        self.programs.append(Program(str(self.file), "--storage", str(self.storage)))
        return self.programs[-1]

    def check_stored(self) -> None:
        """What was stored before the latest start was not started again, and is as it was."""
        assert not {Path(path).stem for path in self.stored} & set(self.programs[-1].started())
        after = snapshot(self.storage)
        assert {path: after[path] for path in self.stored} == self.stored
        self.stored.update(after)

    def check_results(self) -> int:
        """The results are those of an undisturbed sweep, and each trial ended once. Returns how many were begun."""
        assert_bit_equal(load_sweep(self.file), self.storage)
        counts = Counter(trial for each in self.programs for trial in each.done())
        assert max(counts.values()) == 1
        assert not list((self.storage / "killed").rglob(".tmp-*"))
        return sum(len(each.started()) for each in self.programs)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    victim = Victim(tmp_path)
    yield victim
    for program in victim.programs:
        program.end()


@pytest.mark.long
def test_a_sweep_survives_the_death_of_the_driver(victim: Victim) -> None:
    victim.file.write_text(re.sub(r"\[1e-5.*\]", "[1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4]", SWEEP))
    program = victim.start()
    program.wait_for("trial_done", 2)
    kill(program.process.pid)
    program.wait()
    victim.check_stored()
    program.end()

    assert victim.start().wait() == 0
    victim.check_stored()
    assert 6 <= victim.check_results() <= 6 + 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_sweep_survives_the_death_of_a_worker_of_ctrl_c_of_the_raylet_and_of_the_driver(victim: Victim) -> None:
    program = victim.start()
    program.wait_for("trial_done", 2)
    program.kill_descendant("ray::ResourceTrainable")
    program.wait_for("trial_retry")
    program.wait_for("trial_done", 4)
    os.kill(program.process.pid, signal.SIGINT)
    assert program.wait() == 130
    assert program.events[-1]["event"] == "interrupted"
    assert program.errors() == "cbp-ray: interrupted\n"
    victim.check_stored()

    program = victim.start()
    program.wait_for("start")
    # Workers would go on for a while without it: before there are any, nothing can.
    program.kill_descendant("raylet/raylet")
    assert program.wait() == 1
    assert program.errors() == "cbp-ray run: Ray's raylet died; run the same command again to go on\n"
    victim.check_stored()

    program = victim.start()
    program.wait_for("trial_done", 2)
    kill(program.process.pid)
    program.wait()
    victim.check_stored()
    program.end()

    assert victim.start().wait() == 0
    victim.check_stored()
    # A worker that died was in one trial; the driver and Ctrl-C cut short at most two each.
    assert 16 <= victim.check_results() <= 16 + 1 + 2 * 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_sigterm_ends_a_sweep_as_ctrl_c_does(victim: Victim) -> None:
    victim.file.write_text(SWEEP.replace("400_000", "4_000_000"))
    program = victim.start()
    program.wait_for("trial_start", 2)
    program.wait_for("progress", 1)
    os.kill(program.process.pid, signal.SIGTERM)
    assert program.wait(60) == 130
    assert program.errors().splitlines()[-1] == "cbp-ray: interrupted" and "SIGTERM" not in program.errors()
    (status,) = statuses(Store(victim.storage, "killed"))
    assert status.state == "interrupted"
    assert list((victim.storage / "killed" / "checkpoints").iterdir())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_second_ctrl_c_stops_at_once(victim: Victim) -> None:
    victim.file.write_text(SWEEP.replace("400_000", "40_000_000"))
    program = victim.start()
    program.wait_for("trial_start", 2)
    os.kill(program.process.pid, signal.SIGINT)
    program.wait_for("progress", 1)
    os.kill(program.process.pid, signal.SIGINT)
    assert program.wait(30) == 130
