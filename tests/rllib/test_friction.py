"""The friction schedule: a function of the seed and the global time-step alone."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cbp_ray.errors import InputError
from cbp_ray.randomness import Purpose, uniforms
from rllib_ext.ant.friction import FrictionSchedule


def test_the_defaults_are_the_papers() -> None:
    schedule = FrictionSchedule()
    assert (schedule.period, schedule.low, schedule.high, schedule.initial) == (10_000_000, 1e-4, 1e4, 1.5)
    assert schedule.friction(0) == schedule.friction(9_999_999) == 1.5 != schedule.friction(10_000_000)


@given(seed=st.integers(0, 2**64 - 1), step=st.integers(0, 10**12), period=st.integers(1, 10**8))
def test_friction_changes_at_multiples_of_the_period_and_nowhere_else(seed: int, step: int, period: int) -> None:
    schedule = FrictionSchedule(seed=seed, period=period)
    change = schedule.next_change(step)
    assert step < change <= step + period and change % period == 0
    assert schedule.friction(step) == schedule.friction(change - 1) == schedule.friction(change - period)
    assert 1e-4 <= schedule.friction(change) <= 1e4


def test_every_step_can_be_asked_alone() -> None:
    """The sequence as one who draws it in order would have it."""
    schedule = FrictionSchedule(seed=7, period=10)
    drawn = np.exp(np.log(1e-4) + uniforms(7, Purpose.FRICTION, 50) * (np.log(1e4) - np.log(1e-4)))
    for change in reversed(range(50)):
        assert schedule.friction(10 * (change + 1)) == pytest.approx(drawn[change], rel=1e-12)


def test_friction_is_log_uniform() -> None:
    schedule = FrictionSchedule(seed=1, period=1, low=1e-2, high=1e3)
    logarithms = [math.log10(schedule.friction(step)) for step in range(1, 4001)]
    assert stats.kstest(logarithms, stats.uniform(-2, 5).cdf).pvalue > 0.01


def test_seeds_give_different_sequences() -> None:
    assert len({FrictionSchedule(seed=seed, period=1).friction(step) for seed in range(20) for step in range(1, 20)}) == 380


def test_a_number_is_a_friction_that_never_changes() -> None:
    schedule = FrictionSchedule.make(0.3)
    assert {schedule.friction(step) for step in (0, 10**7, 10**9)} == {0.3}


def test_a_mapping_may_leave_the_seed_to_the_caller_and_write_numbers_as_text() -> None:
    assert FrictionSchedule.make({"period": "1e6", "low": "1e-2"}, seed=5) == FrictionSchedule(
        seed=5, period=1_000_000, low=0.01
    )
    assert FrictionSchedule.make({"seed": 2}, seed=5).seed == 2
    assert FrictionSchedule.make(None, seed=5).seed == 5


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"period": 0}, "friction.period"),
        ({"period": 2.5}, "friction.period"),
        ({"low": -1}, "friction.low"),
        ({"high": math.inf}, "friction.high"),
        ({"initial": "slippery"}, "friction.initial"),
        ({"initial": True}, "friction.initial"),
        ({"low": 2, "high": 1}, "friction.low"),
        ({"seed": -1}, "friction.seed"),
        ({"seed": 2**64}, "friction.seed"),
        ({"perod": 5}, "friction.perod"),
        (0.0, "friction"),
        ("wet", "friction"),
        ([1.5], "friction"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        FrictionSchedule.make(settings)
    assert str(caught.value).startswith(f"{field}: ") and "\n" not in str(caught.value)
