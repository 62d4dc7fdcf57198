"""A worker dies or fails after one trial and before the next, which is then tried again like any other."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray import tune
from sweep_help import SMALL, assert_bit_equal, descendants, kill

from cbp_ray.sweeps import load_sweep, run_sweep
from cbp_ray.sweeps.progress import Event
from cbp_ray.sweeps.worker_deaths import counted_once

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


@pytest.fixture
def one_worker(tmp_path: Path) -> Iterator[None]:
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("one_worker")
def test_a_trial_whose_worker_could_not_be_reset_is_tried_again(tmp_path: Path) -> None:
    class Fails(tune.Trainable):
        def reset_config(self, new_config: dict[str, int]) -> bool:
            if not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                raise OSError("no space left")
            return True

        def step(self) -> dict[str, bool]:
            return {"done": True}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            """Nothing is worth keeping."""

        def load_checkpoint(self, checkpoint: dict[str, int] | None) -> None:
            """Nothing was kept."""

    with counted_once():
        results = tune.Tuner(
            Fails,
            param_space={"k": tune.grid_search([0, 1, 2])},
            tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=1),
            run_config=tune.RunConfig(storage_path=str(tmp_path / "tune"), failure_config=tune.FailureConfig(1), verbose=0),
        ).fit()
    assert (tmp_path / "failed").exists()
    assert (len(results), results.num_errors, results.num_terminated) == (3, 0, 3)


def test_a_trial_whose_worker_died_before_it_began_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL.replace("[1e-3, 1e-2]", "[1e-4, 1e-3, 1e-2, 1e-1]"))
    sweep, events = load_sweep(path), list[Event]()

    def kill_the_worker(event: Event) -> None:
        events.append(event)
        # The first trial has just ended, and Tune has not yet asked its worker to do the next.
        if event.kind == "trial_done" and sum(event.kind == "trial_done" for event in events) == 1:
            for pid, line in descendants(os.getpid()):
                if line.startswith(("ray::RunBlock", "ray::ResourceTrainable")):
                    kill(pid)

    totals = run_sweep(sweep, tmp_path / "results", progress=kill_the_worker, max_concurrent=1)
    kinds = [event.kind for event in events]
    assert (totals.failed, kinds.count("trial_retry"), kinds.count("trial_failed")) == (0, 1, 0)
    assert_bit_equal(sweep, tmp_path / "results")
