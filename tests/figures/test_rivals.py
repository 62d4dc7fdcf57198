"""The comparison of methods: what is chosen, on which seeds, who wins, and what other papers claim; on made-up curves."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from made_up_results import curves

from cbp_ray.cli.main import cli
from cbp_ray.figures.claims import Verdict, evaluate
from cbp_ray.figures.results import Setting
from cbp_ray.figures.rivals import comparison
from cbp_ray.figures.rivals.claims import CLAIMS
from cbp_ray.figures.rivals.comparison import Chosen, Kind, Report, kind_of, load_stream, second_stage
from cbp_ray.figures.rivals.page import write_report

GOOD = {
    "swr": 0.5,
    "swr_layer_norm": 0.5,
    "cbp": 0.6,
    "redo": 0.7,
    "upgd": 0.55,
    "l2_init": 0.8,
    "layer_norm": 0.9,
    "linear": 1.2,
}
"""Errors in a world in which the other papers are right; 1 where nothing is said."""
BAD = {"swr": 0.9, "swr_layer_norm": 0.95, "cbp": 0.8, "redo": 0.8, "cbp_layer_norm": 0.2, "redo_layer_norm": 0.2, "upgd": 1.5}


def world(errors: dict[str, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, good: bool = True) -> Report:
    """A report in which every competitor has its error, and L2-Init is best at a strength of 1e-2 in a good world."""
    sweep = load_stream("bit_flipping", "paper")
    found: dict[tuple[Kind, str], list[Setting]] = {}
    level = {}
    for number, each in enumerate(sweep.configurations):
        error = errors.get(each.group, 1.0)
        best = float(each.config.optimizer.step_size == 0.01)
        if each.group == "l2_init":
            strength = each.config.algorithm.strength  # type: ignore[attr-defined]
            best += (strength == 1e-2) == good
        made = curves(error * (2 - best / 2), error * (2 - best / 2), runs=20, seed=number)
        found.setdefault((kind_of(each.config), each.group), []).append(Setting(each.config, made))
        level[each.group] = error
    chosen = [Chosen(kind, group, tuple(settings)) for (kind, group), settings in found.items()]

    def read(sweep: Any, _storage: str) -> list[Setting]:
        return [Setting(c.config, curves(level[c.group], level[c.group], runs=100, seed=9)) for c in sweep.configurations]

    monkeypatch.setattr(comparison, "read_settings", read)
    monkeypatch.setattr(comparison, "seconds_per_example", lambda config: 1.0)
    return Report(chosen, second_stage(sweep, chosen), str(tmp_path))


def test_the_best_of_each_is_run_on_fresh_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sweep = load_stream("bit_flipping", "paper")
    report = world(GOOD, monkeypatch, tmp_path)
    later = second_stage(sweep, report.chosen.values())
    assert not set(sweep.seeds) & set(later.seeds)
    assert len(later.seeds) == 100
    assert all(one.best.step_size == 0.01 for one in report.chosen.values())
    kinds = {kind_of(each.config) for each in sweep.configurations}
    groups = {each.group for each in sweep.configurations}
    # Self-normalised resets are for ReLU, and equal betas for Adam; methods without settings that share a config run once.
    assert len(report.chosen) == len(kinds) * len(groups) - 2 - 2
    assert len(later.configurations) <= len(report.chosen)


def test_places_are_ranked_with_intervals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = world(GOOD | {"full_reset": 0.1}, monkeypatch, tmp_path)
    places = report.places(Kind("relu", "sgd"))
    assert places[0].chosen.group == "full_reset" and places[0].rank is None
    ranked = [place for place in places if place.rank is not None]
    assert ranked[0].chosen.group in ("swr", "swr_layer_norm") and ranked[0].rank is not None and ranked[0].rank[0] == 1
    by_group = {place.chosen.group: place for place in places}
    assert by_group["cbp"].total[0] == pytest.approx(0.6, rel=0.05)
    assert by_group["cbp"].total[1] < by_group["cbp"].total[0] < by_group["cbp"].total[2]
    assert by_group["cbp"].share == pytest.approx(1.0) and by_group["bp"].share == 0
    assert by_group["bp"].cost == 1


@pytest.mark.parametrize(("errors", "good", "verdict"), [(GOOD, True, Verdict.HOLDS), (BAD, False, Verdict.FAILS)])
def test_claims_hold_in_one_world_and_fail_in_another(
    errors: dict[str, float], good: bool, verdict: Verdict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = world(errors, monkeypatch, tmp_path, good)
    assert {claim.key: evaluate(claim, report).verdict for claim in CLAIMS} == {claim.key: verdict for claim in CLAIMS}


def test_the_report_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = write_report(
        "bit_flipping", world(GOOD, monkeypatch, tmp_path / "storage"), tmp_path / "out", "cbp-ray reproduce rivals"
    )
    assert all(path.stat().st_size > 100 for path in written.paths)
    rows = list(csv.DictReader((tmp_path / "out" / "rivals_bit_flipping.csv").open()))
    assert {row["competitor"] for row in rows} >= {"bp", "cbp", "upgd", "swr"}
    assert np.isfinite([float(row["total_error"]) for row in rows]).all()
    page = (tmp_path / "out" / "rivals_bit_flipping.md").read_text()
    assert "## ReLU, SGD" in page and "has the least error" in page and "rivals.swr-small-networks" in page


@pytest.mark.long
def test_smoke_through_ray(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["reproduce", "rivals", "--scale", "smoke", "--storage", str(tmp_path)])
    assert result.exit_code in (0, 1), result.output
    assert (tmp_path / "figures" / "smoke" / "rivals_bit_flipping_totals.png").exists()
