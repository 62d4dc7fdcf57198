"""The comparison of methods: what is chosen, on which seeds, who wins, and what other papers claim; on made-up curves."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from made_up_results import curves

from cbp_ray.cli.main import cli
from cbp_ray.experiments import Curves
from cbp_ray.figures.claims import Verdict, evaluate
from cbp_ray.figures.results import Setting
from cbp_ray.figures.rivals import comparison
from cbp_ray.figures.rivals.claims import claims_of
from cbp_ray.figures.rivals.comparison import Kind, Report, choose, kind_of, load_stream, second_stage
from cbp_ray.figures.rivals.page import write_documentation, write_reports
from cbp_ray.figures.rivals.streams import STREAMS, Stream

BITS = STREAMS["bit-flipping"]
GOOD = {
    "swr": 0.5,
    "swr_layer_norm": 0.5,
    "cbp": 0.6,
    "redo": 0.7,
    "upgd": 0.55,
    "l2_init": 0.8,
    "layer_norm": 0.9,
    "linear": 1.2,
    "input_norm": 0.3,
    "l2_init_input_norm": 0.25,
}
"""Errors in a world in which the other papers are right; 1 where nothing is said."""
BAD = {"swr": 0.9, "swr_layer_norm": 0.95, "cbp": 0.8, "redo": 0.8, "cbp_layer_norm": 0.2, "redo_layer_norm": 0.2, "upgd": 1.5}
BAD |= {"input_norm": 1.1}


def world(
    errors: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    good: bool = True,
    stream: Stream = BITS,
    length: int = 0,
) -> Report:
    """A report in which every competitor has its error, and L2-Init is best at a strength of 1e-2 in a good world."""
    sweep = load_stream(stream, "paper")
    found: dict[tuple[Kind, str], list[Setting]] = {}
    level = {}
    for number, each in enumerate(sweep.configurations):
        error = errors.get(each.group, 1.0)
        best = float(each.config.optimizer.step_size == 0.01)
        if each.group == "l2_init":
            strength = each.config.algorithm.strength  # type: ignore[attr-defined]
            best += (strength == 1e-2) == good
        made = made_up(error * (2 - best / 2), 20, number)
        found.setdefault((kind_of(each.config), each.group), []).append(Setting(each.config, made))
        level[each.group] = error

    def read_first(_sweep: Any, _storage: str) -> list[Setting]:
        return [setting for settings in found.values() for setting in settings]

    def read_second(sweep: Any, _storage: str) -> list[Setting]:
        return [Setting(c.config, made_up(level.get(c.group, 1.0), 100, 9)) for c in sweep.configurations]

    # `choose` reads the settings in the order of the sweep.
    in_order = [each for group in found for each in sweep.configurations if (kind_of(each.config), each.group) == group]
    monkeypatch.setattr(comparison, "read_settings", read_first)
    chosen = choose(stream, replace(sweep, configurations=tuple(in_order)), str(tmp_path))
    monkeypatch.setattr(comparison, "read_settings", read_second)
    monkeypatch.setattr(comparison, "seconds_per_example", lambda stream, config: 1.0)
    examples = stream.full.lengths[length]
    return Report(stream, chosen, second_stage(stream, sweep, chosen, examples), str(tmp_path))


def made_up(error: float, runs: int, seed: int) -> Curves:
    """Runs of one error, as a squared error and as an accuracy."""
    made = curves(error, error, runs=runs, seed=seed)
    return replace(made, metrics=made.metrics | {"accuracy": 1 - 0.3 * made["error"], "loss": made["error"]})


def test_the_best_of_each_is_run_on_fresh_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sweep = load_stream(BITS, "paper")
    report = world(GOOD, monkeypatch, tmp_path)
    later = second_stage(BITS, sweep, report.chosen.values(), 5_000_000)
    assert not set(sweep.seeds) & set(later.seeds)
    assert len(later.seeds) == 100
    assert all(each.config.examples == 5_000_000 for each in later.configurations)
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


def test_a_best_value_at_the_end_of_its_grid_is_marked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = world(GOOD, monkeypatch, tmp_path)
    by_group = {place.chosen.group: place for place in report.places(Kind("tanh", "sgd"))}
    assert by_group["l2_init"].chosen.at_the_edge == {"strength"}
    assert "strength=0.01*" in by_group["l2_init"].row["setting"] and "step_size=0.01," in by_group["l2_init"].row["setting"]
    assert by_group["bp"].chosen.at_the_edge == set()


def test_competitors_are_compared_across_kinds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = world(GOOD, monkeypatch, tmp_path)
    found = {across.group: across for across in report.across_kinds()}
    assert not {"full_reset", "linear", "snr", "equal_betas"} & set(found)  # oracles, and those of one kind alone
    assert found["bp"].ratios == pytest.approx([2.0] * 4, rel=0.05) and found["bp"].mean == pytest.approx(2.0, rel=0.05)
    assert next(iter(found)) in ("swr", "swr_layer_norm") and found["swr"].mean < 1.05


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize(("errors", "good", "verdict"), [(GOOD, True, Verdict.HOLDS), (BAD, False, Verdict.FAILS)])
def test_claims_hold_in_one_world_and_fail_in_another(
    errors: dict[str, float],
    good: bool,
    verdict: Verdict,
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    report = world(errors, monkeypatch, tmp_path, good, stream)
    # Bit-Flipping has no normalised inputs.
    claims = [claim for claim in claims_of(stream) if list(claim.cells(report))]
    assert len(claims) == len(claims_of(stream)) - (stream is BITS)
    assert {claim.key: evaluate(claim, report).verdict for claim in claims} == {claim.key: verdict for claim in claims}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_the_seeds_that_choose_do_not_report(stream: Stream) -> None:
    for scale in ("paper", "laptop", "smoke"):
        assert not set(load_stream(stream, scale).seeds) & set(stream.stage(scale).seeds)


def test_a_published_setting_is_reported_in_any_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = world(GOOD, monkeypatch, tmp_path, stream=STREAMS["upgd"])
    (kind,) = report.kinds
    (published,) = report.chosen[kind, "upgd_published"].swept
    method = published.config.algorithm.model_dump()
    assert (published.step_size, method["noise"], method["decay_rate"], method["weight_decay"]) == (0.01, 0.1, 0.9999, 0.01)
    assert report.has(kind, "upgd_published")


def test_the_report_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reports = [world(GOOD, monkeypatch, tmp_path / "storage", length=length) for length in (0, 1)]
    written = write_reports(reports, tmp_path / "out")
    assert all(path.stat().st_size > 100 for path in written.paths)
    for examples in BITS.full.lengths:
        rows = list(csv.DictReader((tmp_path / "out" / f"rivals_bit_flipping_{examples}.csv").open()))
        assert {row["competitor"] for row in rows} >= {"bp", "cbp", "upgd", "swr"}
        assert np.isfinite([float(row["total_error"]) for row in rows]).all()
    page = (tmp_path / "out" / "rivals_bit_flipping.md").read_text()
    assert "**ReLU, SGD.**" in page and "has the least error" in page and "rivals_bit_flipping.swr-small-networks" in page
    docs = write_documentation(BITS, written, tmp_path / "docs")
    again = write_documentation(BITS, written, tmp_path / "docs")
    assert docs == again and docs.read_text().count("## Bit-Flipping") == 1
    for picture in re.findall(r"\]\((figures/.*?)\)", docs.read_text()):
        assert (tmp_path / "docs" / picture).exists()


def test_accuracies_are_shown_where_a_problem_has_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = STREAMS["permuted-mnist"]
    written = write_reports([world(GOOD, monkeypatch, tmp_path, stream=stream)], tmp_path / "out")
    line = next(line for line in written.text.splitlines() if line.startswith("| cbp |"))
    mean, low, high = map(float, re.findall(r"0\.\d+", line.split("|")[3]))
    assert mean == pytest.approx(1 - 0.3 * 0.6, abs=0.01) and low < mean < high


@pytest.mark.long
def test_smoke_through_ray(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["reproduce", "rivals", "--scale", "smoke", "--storage", str(tmp_path)])
    assert result.exit_code in (0, 1), result.output
    assert (tmp_path / "figures" / "smoke" / "rivals_bit_flipping_4000_totals.png").exists()
