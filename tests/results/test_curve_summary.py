"""Summaries of curves: the same numbers whether seeds come together or one after the other, bin by bin or at once."""

import numpy as np
import pytest

from cbp_ray.errors import InputError
from cbp_ray.experiments.curves import Curves
from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.results.intervals import mean_interval

RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(7, 5))


def summary(rows: slice, bins: int = 5) -> CurveSummary:
    seeds = tuple(range(7))[rows]
    examples = 10 * np.arange(1, bins + 1)
    return CurveSummary.of(Curves(seeds, examples, {"error": VALUES[rows, :bins], "dead": VALUES[rows, :bins] ** 2}))


def assert_same(comp: CurveSummary, ref: CurveSummary) -> None:
    for name in ("examples", "seeds", "squares"):
        np.testing.assert_allclose(getattr(comp, name), getattr(ref, name), rtol=1e-12)
    assert comp.means.keys() == ref.means.keys()
    for name in ref.means:
        np.testing.assert_allclose(comp.means[name], ref.means[name], rtol=1e-12)


def test_parts_of_the_seeds_sum_up_to_all_of_them() -> None:
    assert_same(CurveSummary.together([summary(slice(0, 2)), summary(slice(2, 3)), summary(slice(3, 7))]), summary(slice(0, 7)))


def test_the_interval_is_that_of_the_curves() -> None:
    ref, comp = mean_interval(VALUES), summary(slice(0, 7)).interval()
    for name in ("estimate", "low", "high"):
        np.testing.assert_allclose(getattr(comp, name), getattr(ref, name), rtol=1e-12)
    single = summary(slice(0, 1))
    assert np.isnan(single.interval().low).all() and np.isnan(single.standard_error).all()


def test_a_bin_counts_the_seeds_that_have_come_to_it() -> None:
    mixed = CurveSummary.together([summary(slice(0, 2), bins=3), summary(slice(2, 7))])
    np.testing.assert_array_equal(mixed.seeds, [7, 7, 7, 5, 5])
    assert_same(mixed.part(0, 3), summary(slice(0, 7)).part(0, 3))
    assert_same(mixed.part(3), summary(slice(2, 7)).part(3))


def test_reports_in_pieces_repeated_or_from_a_checkpoint_give_the_whole() -> None:
    whole = summary(slice(0, 7)).beside({"age": np.arange(5.0)})
    comp = whole.part(0, 2).followed_by(whole.part(2, 5), 2)
    assert_same(comp, whole)
    again = CurveSummary(
        whole.performance, whole.examples, whole.seeds, whole.squares, {**whole.means, "age": np.full(5, np.nan)}
    )
    # What was known of later bins stays: it is what the worker will report again.
    assert_same(comp.followed_by(again.part(0, 3), 0), whole)
    with pytest.raises(ValueError, match="from bin 3 on"):
        whole.part(0, 2).followed_by(whole.part(3), 3)


def test_a_summary_survives_a_file_and_half_of_one_is_refused() -> None:
    whole = summary(slice(0, 7))
    assert_same(CurveSummary.from_arrays(whole.as_arrays()), whole)
    with pytest.raises(InputError):
        CurveSummary.from_arrays({"examples": whole.examples})


def test_a_diverged_run_makes_no_warning() -> None:
    curves = Curves((0, 1), np.array([1, 2]), {"error": np.array([[1.0, np.inf], [2.0, np.nan]])})
    assert np.isnan(CurveSummary.together([CurveSummary.of(curves), CurveSummary.of(curves)]).interval().low[1])
