"""A network between two nodes that drops everything for a minute."""

import time
from pathlib import Path

import pytest
from fault_help import scene, wait_until, workers
from network_help import two_machines, why_not

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600), pytest.mark.slow]
SILENCE = 60.0
"""Seconds for which nothing passes."""


@pytest.mark.parametrize("driver", ["head", "node"])
def test_a_network_that_drops_everything_for_a_minute_loses_nothing(driver: str, tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with scene(tmp_path, examples=6_000_000) as made:
        with two_machines(made) as network:
            inside = network.inside(getattr(network, driver))
            program = made.start("--address", network.address, inside=inside)
            # A trial on each of the machines.
            wait_until(lambda: len(workers(made)) == 2, 200)
            program.wait_for("trial_done", 1)
            before = made.stored()
            network.cut()
            time.sleep(SILENCE)
            network.mend()
            code = program.wait()
            if driver == "head":
                assert code == 0, program.story()
            else:
                # What can't reach the cluster may give up, in one line; the next start goes on.
                errors = program.errors()
                assert code == 0 or (code == 1 and errors.count("\n") == 1), errors
                made.finish("--address", network.address, inside=network.inside(network.head))
            assert before.items() <= made.stored().items()
        made.check()
