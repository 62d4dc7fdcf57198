"""A worker dies after one trial and before the next, which is then tried again like any other."""

import os
from pathlib import Path

import pytest
from sweep_help import SMALL, assert_bit_equal, descendants, kill

from cbp_ray.sweeps import load_sweep, run_sweep
from cbp_ray.sweeps.progress import Event

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


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
