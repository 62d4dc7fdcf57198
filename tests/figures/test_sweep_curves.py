"""`cbp-ray plot CONFIG.yaml`: any sweep as learning curves."""

import csv
from pathlib import Path

import numpy as np
import pytest

from cbp_ray.cli import main
from cbp_ray.experiments import Curves, OnlineConfig
from cbp_ray.experiments.engines import ENGINES
from cbp_ray.figures.sweep_curves import CYCLE, Drawn, labels, read_sweep, say_missing, worth
from cbp_ray.problems import PROBLEMS
from cbp_ray.results import Block, Store
from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.sweeps import load_sweep
from cbp_ray.sweeps.block_run import LivePart
from cbp_ray.sweeps.live_curves import LiveCurves

SWEEP = """
sweep: mine
seeds: "0:3"
base:
  optimizer: {name: sgd, step_size: 0.01}
  examples: 1_000
  bin_size: 100
groups:
  bp: {algorithm: {name: bp}}
  l2: {algorithm: {name: l2, weight_decay: 1e-3}}
  cbp: {algorithm: {name: cbp, replacement_rate: RATES}}
"""


def stored(folder: Path, rates: str, problem: str = "bit_flipping", more: str = "") -> Path:
    """A sweep file whose results are made up and stored in `folder`."""
    path = folder / "mine.yaml"
    engine = "torch" if more else next(engine for engine, name in ENGINES if name == problem)
    text = (SWEEP + more).replace("base:", f"engine: {engine}\nbase:\n  problem: {{name: {problem}}}").replace("RATES", rates)
    path.write_text(text.replace("name: sgd", "name: adam") if problem == "slippery_ant" else text)
    sweep = load_sweep(path)
    metric = PROBLEMS[problem].performance
    store = Store(folder, sweep.name)
    for number, configuration in enumerate(sweep.configurations):
        values = number + np.arange(30.0).reshape(3, 10)
        values[:, 4] = np.nan  # no episode ended in this bin
        curves = Curves(sweep.seeds, np.arange(100, 1100, 100), {metric: values})
        store.write(Block(configuration.config, sweep.engine, sweep.seeds), curves, {})
    return path


def test_labels_say_what_differs_and_nothing_else(tmp_path: Path) -> None:
    sweep = load_sweep(stored(tmp_path, "[1e-4, 0.0003, 0.1]"))
    expected = ["BP", "BP+L2", *(f"CBP, replacement rate {rate}" for rate in ("1e-4", "3e-4", "0.1"))]
    assert labels(sweep.configurations) == expected
    assert list(read_sweep(sweep, Store(tmp_path, sweep.name))) == expected


def test_a_single_configuration_goes_by_its_algorithm(tmp_path: Path) -> None:
    sweep = load_sweep(stored(tmp_path, "1e-4"))
    assert labels(sweep.configurations[-1:]) == ["CBP"]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("rates", ["[1e-4, 1e-3]", f"[{', '.join(f'{n}e-5' for n in range(1, len(CYCLE) + 3))}]"])
def test_plot_draws_any_sweep_and_writes_its_numbers(problem: str, rates: str, tmp_path: Path) -> None:
    path, metric = stored(tmp_path, rates, problem), PROBLEMS[problem].performance
    path = path.rename(tmp_path / "mine0.1.yaml")
    assert main(["plot", str(path), "--storage", str(tmp_path)]) == 0
    drawn = tmp_path / "figures" / "paper"
    assert (drawn / "mine0.1.png").stat().st_size > 10_000
    assert (drawn / "mine0.1.pdf").stat().st_size > 5_000
    rows = list(csv.DictReader((drawn / "mine0.1.csv").read_text().splitlines()))
    assert len(rows) == 10 * (2 + len(rates.split(",")))
    first = "PPO" if problem == "slippery_ant" else "BP"
    assert (rows[0]["configuration"], rows[0]["examples"], float(rows[0][f"{metric}_mean"])) == (first, "100", 10.0)
    assert float(rows[0][f"{metric}_se"]) == pytest.approx(10 / np.sqrt(3), rel=1e-5)
    assert rows[4][f"{metric}_mean"] == ""


def test_a_sweep_that_is_not_complete_is_drawn_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored(tmp_path, "[1e-4, 1e-3]")
    sweep, store = load_sweep(path), Store(tmp_path, "mine")
    bp, l2, *_ = (Block(c.config, "kernel", sweep.seeds) for c in sweep.configurations)
    whole = store.read_curves(bp.config, sweep.seeds)
    for block in (bp, l2):
        store.curves.remove(f"{block.trial_id}.parquet")
    # BP: one run stored, the two others are in their fifth bin; L2: nothing.
    store.write(Block(bp.config, "kernel", (0,)), Curves((0,), whole.examples, {"error": whole.error[:1]}), {})
    begun = Curves((1, 2), whole.examples[:4], {"error": whole.error[1:, :4]})
    live, rest = LiveCurves(store), Block(bp.config, "kernel", (1, 2))
    live.report(rest, LivePart(0, CurveSummary.of(begun)))
    drawn = read_sweep(sweep, store)
    assert list(drawn) == ["BP", "CBP, replacement rate 1e-4", "CBP, replacement rate 1e-3"]
    np.testing.assert_allclose(drawn["BP"].summary.mean[:4], whole.mean()[:4])
    assert drawn["BP"].summary.seeds.tolist() == [3] * 4 + [1] * 6
    words = "NOT COMPLETE: 7 of 12 runs are complete, 2 shown so far, 3 missing, nothing yet of 1 configurations"
    assert say_missing(sweep, drawn) == words
    assert main(["plot", str(path), "--storage", str(tmp_path)]) == 0
    assert words in capsys.readouterr().out


def test_what_diverged_is_not_among_the_best() -> None:
    config = OnlineConfig.make({"algorithm": {"name": "bp"}, "optimizer": {"name": "sgd", "step_size": 0.01}})

    def setting(*means: float) -> Drawn:
        return Drawn(config, CurveSummary.of(Curves((0,), np.arange(len(means)), {"error": np.array([means])})), stored=1)

    diverged = (setting(np.nan, np.nan), setting(0.1, np.inf))
    assert max(map(worth, diverged)) == -np.inf < worth(setting(3.0, np.nan)) < worth(setting(1.0, 2.0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.yaml"], "must be a figure or a sweep file that exists, got 'nothing.yaml'"),
        (["fig99"], "must be one of"),
        (["mine.yaml", "--docs", "docs"], "--docs: is for figures of the paper"),
        (["mine.yaml"], "run the sweep first"),
    ],
)
def test_what_cannot_be_drawn_is_one_line_and_writes_nothing(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(SWEEP.replace("RATES", "1e-4"))
    assert main(["plot", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]


def test_a_search_has_no_configurations_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "search.yaml"
    space = "tune: {samples: 3, space: {algorithm.replacement_rate: {loguniform: [1e-6, 1e-2]}}}"
    only_cbp = [line for line in SWEEP.replace("RATES", "1e-4").splitlines() if not line.startswith(("  bp:", "  l2:"))]
    path.write_text("\n".join([*only_cbp, space]))
    assert main(["plot", str(path), "--storage", str(tmp_path)]) == 2
    assert "got a search (tune)" in capsys.readouterr().err


def test_groups_go_by_their_own_names_where_they_have_one() -> None:
    sweep = load_sweep(Path(__file__).parents[2] / "tune_configs" / "slippery_ant" / "fig9.yaml")
    found = labels(sweep.configurations)
    assert found[:2] == ["ppo", "PPO+L2, weight decay 1e-3"]
    assert found[-1] == "cppo, replacement rate 1e-5, maturity threshold 50,000"


METHOD = """
from typing import Any, ClassVar, Literal
from cbp_ray.methods import Method

class Shrink(Method):
    label = "Shrink_and_Perturb"
    name: Literal["shrink"] = "shrink"
    factor: float
"""


def test_a_method_that_nobody_here_knows_is_drawn_and_named_by_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "somebodys_method.py").write_text(METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CBP_RAY_METHODS", "somebodys_method:Shrink")
    path = stored(tmp_path, "1e-4", more="  new: {algorithm: {name: shrink, factor: [0.5, 0.25]}}\n")
    assert main(["plot", str(path), "--storage", str(tmp_path)]) == 0
    rows = csv.DictReader((tmp_path / "figures" / "paper" / "mine.csv").read_text().splitlines())
    names = list(dict.fromkeys(row["configuration"] for row in rows))
    assert names == ["BP", "BP+L2", "CBP", "new, factor 0.5", "new, factor 0.25"]
