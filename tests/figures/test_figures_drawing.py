"""Every figure is drawn as the paper describes it, and its numbers are those of its runs."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_results import RUNS, setting, world

from cbp_ray.figures import style, tables
from cbp_ray.figures.claims import Verdict
from cbp_ray.figures.registry import FIGURES, GROUPS
from cbp_ray.figures.reproduce import load_figure, produce
from cbp_ray.figures.results import Settings
from cbp_ray.sweeps.sweep import join

BIT_FLIPPING = [key for key in FIGURES if FIGURES[key].problem == "bit-flipping"]
PANELS = {
    "fig3": (1, 2),
    "fig4": (1, 1),
    "fig6": (2, 2),
    "fig7": (1, 1),
    "fig8": (1, 1),
    "fig9": (2, 4),
    "fig10": (1, 4),
    "fig11": (2, 3),
    "fig12": (2, 3),
    "fig13": (2, 3),
    "fig14": (2, 4),
    "fig15": (2, 3),
    "fig16": (2, 3),
    "fig17a": (1, 1),
    "fig17b": (2, 4),
    "fig18": (1, 1),
    "fig19": (1, 2),
    "fig20": (1, 1),
}
FIG7 = {"BP", "BP+L2", "BP+OnlineNorm", "CBP, ρ = 1e-6", "CBP, ρ = 1e-5", "CBP, ρ = 1e-4"}
LINES = {
    "fig3": {"step size 0.01", "step size 0.003", "step size 0.001", "linear"},
    "fig4": {"step size 0.01", "step size 0.003", "step size 0.001"},
    "fig7": FIG7,
    "fig8": FIG7,
    "fig18": {"change every 10,000", "change every 100,000", "change every 1,000,000"},
    "fig20": {"width 100", "width 1000"},
    "fig9": {"PPO", "PPO+L2", "Continual PPO"},
    "fig17b": {"PPO", "Continual PPO, overall", "Continual PPO, mean-corrected contribution"},
    "fig6": {"BP", "BP+L2", "BP+OnlineNorm", "CBP", "linear"},
    "fig15": {"BP", "BP+L2", "CBP", "linear"},
    "fig17a": {
        "BP",
        "overall",
        "mean-corrected contribution",
        "contribution",
        "adaptation",
        "weight magnitude",
        "random",
    },
    "fig19": {"BP", "BP+L2", "BP+OnlineNorm", "CBP"},
}


def draw(key: str, settings: Settings, path: Path) -> None:
    FIGURES[key].drawing(settings, path)


@pytest.mark.parametrize("key", FIGURES)
def test_a_figure_has_all_that_it_needs(key: str) -> None:
    figure = FIGURES[key]
    assert all((figure.title, figure.what, figure.grid, figure.claim))
    assert load_figure(figure).source == key
    assert figure.claims


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=() if key in ("fig6", "fig9") else pytest.mark.long) for key in FIGURES]
)
def test_a_figure_has_its_files_and_its_claims(key: str, tmp_path: Path) -> None:
    product = produce(FIGURES[key], world(key, as_in_the_paper=True), tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {f"{key}{end}" for end in (".png", ".pdf", ".csv", ".md", "_claims.json", "_claims.md")}
    assert {path.name for path in product.paths} == written
    assert {finding.verdict for finding in product.findings} == {Verdict.HOLDS}
    assert (tmp_path / f"{key}.png").stat().st_size > 20_000
    with open(tmp_path / f"{key}.csv", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(list(product.settings))


@pytest.mark.parametrize("key", FIGURES)
def test_a_figure_has_the_panels_and_curves_of_the_paper(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = []
    monkeypatch.setattr(style, "save", lambda figure, path: figures.append(figure))
    draw(key, world(key, as_in_the_paper=True), tmp_path / key)
    (figure,) = figures
    assert figure.axes[0].get_gridspec().get_geometry() == PANELS[key]
    assert len(figure.axes) == np.prod(PANELS[key])
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert labels == LINES.get(key, labels)
    for panel in figure.axes:
        assert panel.get_lines()


def test_bands_are_one_standard_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    plain = style.band

    def band(panel: Any, x: Any, mean: Any, error: Any, label: str, look: Any) -> None:
        drawn.append((label, mean, error))
        plain(panel, x, mean, error, label, look)

    monkeypatch.setattr(style, "band", band)
    settings = world("fig3", as_in_the_paper=True)
    draw("fig3", settings, tmp_path / "fig3")
    label, mean, error = drawn[0]
    runs = settings.one(algorithm="bp", activation="tanh", step_size=0.01).curves.error
    assert label == "step size 0.01"
    np.testing.assert_allclose(mean, runs.mean(axis=0))
    np.testing.assert_allclose(error, runs.std(axis=0, ddof=1) / np.sqrt(RUNS))


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    settings = world("fig3", as_in_the_paper=True)
    for name in ("a", "b"):
        draw("fig3", settings, tmp_path / name)
    for ending in (".png", ".pdf"):
        assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()


def test_the_linear_baseline_is_the_one_of_least_total_error() -> None:
    settings = world("fig3", as_in_the_paper=True)
    assert settings.best(algorithm="linear").step_size == 0.003


def test_the_table_says_which_setting_is_best_of_its_kind() -> None:
    rows = tables.settings_table(FIGURES["fig16"], world("fig16", as_in_the_paper=True))
    best = [row for row in rows if row["best"] and row["activation"] == "relu"]
    assert {(row["algorithm"], row["replacement_rate"], row["weight_decay"]) for row in best} == {
        ("bp", None, None),
        ("l2", None, 3e-3),
        ("cbp", 1e-4, None),
    }


def test_the_table_of_bins_has_means_and_standard_errors() -> None:
    one = setting(0.5, 0.9)
    table = tables.bins_table(Settings([one])).to_pydict()
    assert table["bin"] == list(range(50))
    np.testing.assert_allclose(table["error_mean"], one.curves.mean("error"), rtol=1e-6)
    np.testing.assert_allclose(table["error_se"], one.curves.standard_error("error"), rtol=1e-6)


def test_figures_with_a_smaller_norm_differ_in_nothing_else(tmp_path: Path) -> None:
    claims = {claim.key for figure in GROUPS["plain-norm"] for claim in figure.claims}
    assert claims >= {f"fig19-plain-norm.online-norm-{name}" for name in ("saturates-least", "gradient", "error")}
    for figure in GROUPS["plain-norm"]:
        plain, whole = load_figure(figure), load_figure(FIGURES[figure.key.removesuffix("-plain-norm")])
        for one, other in zip(plain.configurations, whole.configurations, strict=True):
            given = one.config.algorithm.model_dump(), other.config.algorithm.model_dump()
            assert given[0] == {**given[1], **({"affine": False} if one.group == "online_norm" else {})}
        product = produce(figure, world(figure.key.removesuffix("-plain-norm"), as_in_the_paper=True), tmp_path)
        assert {finding.verdict for finding in product.findings} == {Verdict.HOLDS}


def test_figures_share_their_runs() -> None:
    sweeps = {key: load_figure(FIGURES[key]) for key in BIT_FLIPPING}
    (everything,) = join(list(sweeps.values()), "bit-flipping")
    configs = [configuration.config for configuration in everything.configurations]
    assert len(configs) == len(set(configs))
    assert set(configs) == {c.config for sweep in sweeps.values() for c in sweep.configurations}
    fig6 = {c.config for c in sweeps["fig6"].configurations}
    assert fig6.issuperset(c.config for c in sweeps["fig19"].configurations)
    assert {c.config for c in sweeps["fig15"].configurations} == {c.config for c in sweeps["fig16"].configurations}


def test_the_sweeps_are_those_of_the_paper() -> None:
    for key in BIT_FLIPPING:
        sweep = load_figure(FIGURES[key])
        assert sweep.name == "bit_flipping"
        assert sweep.seeds == tuple(range(100))
        lengths = {c.config.examples for c in sweep.configurations}
        assert lengths == ({1_000_000, 5_000_000} if key in ("fig11", "fig13") else {1_000_000})
        for configuration in sweep.configurations:
            config = configuration.config
            assert (config.problem.inputs, config.problem.flipping_bits, config.problem.flip_period) == (20, 15, 10_000)
            assert (config.problem.target_units, config.problem.beta) == (100, 0.7)
            assert (config.network.hidden, config.bin_size) == ((5,), 20_000)
            if config.algorithm.name == "cbp":
                assert (config.algorithm.decay_rate, config.algorithm.maturity_threshold) == (0.99, 100)
                assert config.algorithm.preset == "paper"
            if config.optimizer.name == "adam":
                assert config.optimizer.betas == (0.9, 0.999)
    norm = [c.config.algorithm for c in load_figure(FIGURES["fig6"]).configurations if c.group == "online_norm"]
    pairs = {(a.alpha_forward, a.alpha_backward) for a in norm if a.name == "online_norm"}
    values = (0.9, 0.99, 0.999, 0.9999)
    assert pairs == {(forward, backward) for forward in values for backward in values}
