"""A sweep on Ray, seen in TensorBoard while it runs: reports in the middle of trials, a killed driver, the end."""

import time
from pathlib import Path

import numpy as np
import pytest
from sweep_help import Program, kill
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cbp_ray.results import Store
from cbp_ray.sweeps import load_sweep

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.long, pytest.mark.timeout(400)]
SWEEP = """
sweep: live
seeds: 0:8
base:
  optimizer: {name: sgd, step_size: 0.01}
  examples: 120_000_000
  bin_size: 2_000_000
groups:
  bp: {algorithm: {name: bp}}
  cbp: {algorithm: {name: cbp, replacement_rate: 1e-4}}
"""


class Board:
    """One TensorBoard that stays open."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.loaders = folder, dict[str, EventAccumulator]()

    def steps(self, tag: str) -> dict[str, list[int]]:
        """By run, the steps at which `tag` has points."""
        found = {}
        for folder in self.folder.glob("*"):
            loader = self.loaders.setdefault(folder.name, EventAccumulator(str(folder), size_guidance={"scalars": 0}))
            loader.Reload()
            if tag in loader.Tags()["scalars"]:
                found[folder.name] = [event.step for event in loader.Scalars(tag)]
        return found

    def wait(self, bins: int, timeout: float = 90) -> None:
        """Until both runs have so many points."""
        deadline = time.monotonic() + timeout
        while len(runs := self.steps("performance/error")) < 2 or min(map(len, runs.values())) < bins:
            assert time.monotonic() < deadline, f"only {self.steps('performance/error')} after {timeout} s"
            time.sleep(0.5)


def test_tensorboard_grows_during_trials_and_across_the_death_of_the_driver(tmp_path: Path) -> None:
    file = tmp_path / "live.yaml"
    file.write_text(SWEEP)
    arguments = (str(file), "--storage", str(tmp_path))
    board = Board(tmp_path / "live" / "tensorboard")
    first = Program(*arguments)
    second = None
    try:
        board.wait(8)
        assert not first.done()
        assert {"replacement/age", "replacement/utility"} <= set(board.loaders["cbp"].Tags()["scalars"])
        kill(first.process.pid)
        first.wait()
        first.end()
        before = board.steps("performance/error")
        second = Program(*arguments)
        while second.process.poll() is None:
            board.steps("performance/error")
            time.sleep(5)  # as often as TensorBoard looks
        assert second.wait() == 0, second.errors()
    finally:
        for program in filter(None, (first, second)):
            program.end()
    after = board.steps("performance/error")
    assert set(after) == set(before) == {"bp", "cbp"}
    sweep = load_sweep(file)
    for configuration in sweep.configurations:
        curves = Store(tmp_path, "live").read_curves(configuration.config, sweep.seeds, "kernel")
        run = board.loaders[configuration.group]
        assert after[configuration.group] == curves.examples.tolist()
        values = [event.value for event in run.Scalars("performance/error")]
        np.testing.assert_allclose(values, curves.mean("error"), rtol=1e-5)
