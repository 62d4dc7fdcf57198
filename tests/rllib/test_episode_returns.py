"""Returns of episodes in bins of time-steps."""

import json

import numpy as np
import pytest

from cbp_ray.errors import InputError
from rllib_ext.ant.episode_returns import ReturnBins, finished_episodes


def episodes(seed: int, count: int) -> list[tuple[int, float]]:
    random = np.random.default_rng(seed)
    return [
        (int(step), float(value))
        for step, value in zip(random.integers(0, 1000, count), random.normal(size=count), strict=True)
    ]


def test_a_bin_holds_the_mean_of_the_episodes_that_end_in_it() -> None:
    ended, bins = episodes(0, 300), ReturnBins(bin_size=64)
    bins.add(ended)
    ref = [np.mean([value for step, value in ended if first <= step < first + 64]) for first in range(0, 1000, 64)]
    means, counts = zip(*(bins.take(end) for end in [*range(64, 1000, 64), 1000]), strict=True)
    # Sums in another order.
    np.testing.assert_allclose(means, ref, rtol=1e-12)
    assert sum(counts) == 300


def test_a_bin_ends_before_the_first_step_of_the_next() -> None:
    bins = ReturnBins(40_000)
    bins.add([(39_999, 1.0), (40_000, 2.0)])
    assert [bins.take(40_000), bins.take(80_000)] == [(1.0, 1), (2.0, 1)]


def test_no_episode_gives_no_number() -> None:
    mean, count = ReturnBins(10).take(30)
    assert np.isnan(mean) and count == 0


def test_a_split_run_equals_the_unbroken_run() -> None:
    ended, unbroken, first, second = episodes(1, 200), ReturnBins(50), ReturnBins(50), ReturnBins(50)
    unbroken.add(ended)
    first.add(ended[:77])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.add(ended[77:])
    assert second.state_dict() == unbroken.state_dict()
    with pytest.raises(InputError, match=r"^bin_size: must be 50 as before, got 40"):
        ReturnBins(40).load_state_dict(first.state_dict())


def test_finished_episodes_are_read_from_rllibs_results() -> None:
    two = {"env_runners": {"episode_end_steps": [9, 4], "episode_returns": [1.0, 2.0]}}
    assert finished_episodes(two) == [(4, 2.0), (9, 1.0)]
    assert finished_episodes({"env_runners": {"episode_end_steps": 7, "episode_returns": 3.0}}) == [(7, 3.0)]
    assert finished_episodes({"env_runners": {}}) == finished_episodes({}) == []
