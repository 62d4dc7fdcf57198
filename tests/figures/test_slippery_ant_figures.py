"""What the figures about Slippery Ant compute: phases of one friction each, beginning, end, and what few runs can say."""

import math
from typing import Any

import numpy as np
import pytest

from cbp_ray.experiments import Curves, OnlineConfig
from cbp_ray.figures import documentation, statistics, tables
from cbp_ray.figures.claims import Evidence
from cbp_ray.figures.registry import FIGURES
from cbp_ray.figures.reproduce import load_figure
from cbp_ray.figures.results import Setting, Settings
from cbp_ray.figures.slippery_ant import comparisons as compare


def made(returns: Any, bin_size: int, period: int, episodes: Any = None, **algorithm: Any) -> Setting:
    """Runs with these returns, [runs, bins]."""
    returns = np.asarray(returns, dtype=np.float64)
    runs, bins = returns.shape
    config = OnlineConfig.make(
        {
            "problem": {"name": "slippery_ant", "friction_period": period},
            "algorithm": algorithm or {"name": "bp"},
            "optimizer": {"name": "adam", "step_size": 1e-4},
            "examples": bins * bin_size,
            "bin_size": bin_size,
        }
    )
    metrics = {name: np.full((runs, bins), 0.5) for name in config.metrics} | {"episode_return": returns}
    metrics["episodes"] = np.ones((runs, bins)) if episodes is None else np.asarray(episodes, dtype=np.float64)
    return Setting(config, Curves(tuple(range(runs)), np.arange(1, bins + 1) * bin_size, metrics))


def test_a_bin_that_sees_two_frictions_belongs_to_no_phase() -> None:
    setting = made([np.arange(15.0)], bin_size=40, period=300)
    first, second = compare.phases(setting)
    assert (first.begins, first.bins.tolist()) == (0, [0, 1, 2, 3, 4, 5, 6])
    # The bin of 280 to 320 is left out.
    assert (second.begins, second.bins.tolist()) == (300, [8, 9, 10, 11, 12, 13, 14])


def test_bins_that_fit_are_all_in_a_phase() -> None:
    setting = made([np.arange(20.0)], bin_size=10, period=100)
    assert [phase.bins.tolist() for phase in compare.phases(setting)] == [list(range(10)), list(range(10, 20))]


def test_tenths_beginning_and_end() -> None:
    setting = made([np.arange(40.0), np.arange(40.0) + 100], bin_size=10, period=200)
    first, last = compare.tenths(setting)
    np.testing.assert_allclose(first, [[0.5, 20.5], [100.5, 120.5]])
    np.testing.assert_allclose(last, [[18.5, 38.5], [118.5, 138.5]])
    np.testing.assert_allclose(compare.beginning(setting), [14.5, 114.5])
    np.testing.assert_allclose(compare.end(setting), [34.5, 134.5])


def test_the_difference_of_utilities_grows() -> None:
    utilities = {"overall": 3.0, "mean_corrected_contribution": 1.0}
    line = np.linspace(0, 1, 20)
    settings = Settings(
        made([100 + factor * line] * 6, 10, 100, name="cbp", replacement_rate=1e-4, utility=utility)
        for utility, factor in utilities.items()
    )
    (cell,) = compare.difference_grows("overall", "mean_corrected_contribution")(Evidence(settings))
    beginning, end = line[5:10].mean(), line[15:].mean()
    assert cell.statistic[0] == pytest.approx(2 * (end - beginning))


def test_a_bin_in_which_no_episode_ended_is_no_divergence() -> None:
    setting = made([[5.0, 7.0, math.nan, 9.0]], 10, 20, episodes=[[1, 1, 0, 1]])
    assert setting.diverged == 0
    assert 1 - setting.mean_total == pytest.approx((5 + 7 + 7 + 9) / 4)


def test_a_single_run_has_no_interval() -> None:
    assert statistics.interval(np.ones(11), 0.95, runs=1) == (-math.inf, math.inf)


def test_pairs_of_rate_and_maturity_can_be_told_apart() -> None:
    pairs = [(1e-3, 100), (1e-3, 500)]
    settings = Settings(
        made([[1.0] * 4] * 2, 10, 20, name="cbp", replacement_rate=rate, maturity_threshold=age) for rate, age in pairs
    )
    rows = tables.settings_table(FIGURES["fig9"], settings)
    assert [(row["replacement_rate"], row["maturity_threshold"]) for row in rows] == pairs
    alone = tables.settings_table(FIGURES["fig9"], Settings(list(settings)[:1]))
    assert "maturity_threshold" not in alone[0]
    assert next(iter(settings)).label == "Continual PPO"


def test_the_page_of_results_says_what_was_run() -> None:
    words = documentation._scale(load_figure(FIGURES["fig9"], "laptop"))
    assert "runs of 3,000,000" in words and "a new friction every 300,000 time-steps" in words and "seeds 0:3" in words
