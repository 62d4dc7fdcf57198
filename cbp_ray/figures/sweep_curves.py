"""Any sweep, of the paper or not: what its problem is judged by against examples, a curve per configuration."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cbp_ray.errors import InputError
from cbp_ray.experiments import Curves
from cbp_ray.figures import style, tables
from cbp_ray.figures.names import NAMES, rate_in_words
from cbp_ray.results import Store
from cbp_ray.results.tensorboard import Settings, flat_settings
from cbp_ray.sweeps import Sweep

COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.ORANGE, style.PURPLE, style.SKY, style.BLACK)
REST: dict[str, Any] = {"color": style.GREY, "linewidth": 0.5, "alpha": 0.6}
MANY = 10
"""Bins; fewer are all shown."""
ALGORITHM = "algorithm.name"
PPO = {"bp": "PPO", "l2": "PPO+L2", "cbp": "Continual PPO"}
"""What the algorithms are called on Slippery Ant."""
WORDS = {"error": "squared error", "accuracy": "accuracy (%)", "episode_return": "episodic return"}
"""On the vertical axis."""


def read_sweep(sweep: Sweep, store: Store) -> dict[str, Curves]:
    """The stored curves of every configuration, by what tells it from the others.

    Raises:
      MissingResults: if a run is not stored.
      InputError: for a search, whose configurations no file lists.
    """
    if sweep.tune is not None:
        raise InputError(f"CONFIG.yaml: must list its settings, got a search (tune); look at it in TensorBoard: {store.folder}")
    names = store.names()
    settings = [flat_settings(configuration.config) for configuration in sweep.configurations]
    curves = {
        label: store.read_curves(configuration.config, sweep.seeds, sweep.engine, names)
        for label, configuration in zip(labels(settings), sweep.configurations, strict=True)
    }
    metrics = sorted({each.performance for each in curves.values()})
    if len(metrics) > 1:
        raise InputError(f"CONFIG.yaml: must be about one problem to be drawn, got {' and '.join(metrics)}; split the file")
    return curves


def labels(settings: Sequence[Settings]) -> list[str]:
    """What tells each configuration from the others of its sweep: `CBP, replacement rate 1e-4`."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for own in settings:
        for name, value in own.items():
            values[_comparable(name, own)].add(repr(value))
    found = []
    for own in settings:
        differing = [name for name in own if len(values[_comparable(name, own)]) > 1]
        differing.sort(key=lambda name: name != ALGORITHM)
        found.append(", ".join(_in_words(name, own) for name in differing))
    return found if len(found) > 1 else [_in_words(ALGORITHM, settings[0])]


def _comparable(name: str, own: Settings) -> tuple[str, str]:
    """Among which settings a value is compared: a parameter of one algorithm tells nothing about another."""
    return name, str(own[ALGORITHM]) if name.startswith("algorithm.") and name != ALGORITHM else ""


def _in_words(name: str, own: Settings) -> str:
    leaf, value = name.rpartition(".")[2], own[name]
    if name == ALGORITHM and own["problem.name"] == "slippery_ant":
        return PPO[str(value)]
    words = NAMES.get(str(value), str(value)) if leaf in ("name", "activation") else f"{leaf} {_show(value)}"
    return words.replace("_", " ")


def draw_sweep(sweep: Sweep, curves: Mapping[str, Curves], path: Path) -> None:
    """Draws the curves into `path` with .png and .pdf; of many, the best in colour and the others in grey."""
    metric = next(iter(curves.values())).performance
    factor = 100.0 if metric == "accuracy" else 1.0
    ranked = sorted(curves, key=lambda name: worth(curves[name]), reverse=True)
    coloured = set(ranked[: len(COLOURS)])
    with style.canvas(1, 1, path, width=6.2, height=2.6) as panels:
        panel = panels[0, 0]
        rest = ranked[len(COLOURS) :]
        for name in rest:
            panel.plot(curves[name].examples, factor * curves[name].mean(), label=f"the other {len(rest)}", **REST)
        algorithms = [configuration.config.algorithm.name for configuration in sweep.configurations]
        # One curve of each algorithm: in the colours that they have in the paper's figures.
        one_each = len(set(algorithms)) == len(algorithms)
        colours = iter(COLOURS)
        for algorithm, (name, each) in zip(algorithms, curves.items(), strict=True):
            if name in coloured:
                look = {"color": style.ALGORITHMS[algorithm]["color"] if one_each else next(colours)}
                style.band(panel, each.examples.astype(float), factor * each.mean(), factor * each.standard_error(), name, look)
        # The first bin, before anything is learned, would squeeze all others together.
        means = np.concatenate([factor * curves[name].mean()[len(curves[name].examples) >= MANY :] for name in coloured])
        means = means[np.isfinite(means)]
        if len(means):
            style.limit(panel, float(means.min()), float(means.max()))
        panel.set_xlim(0, max(int(each.examples[-1]) for each in curves.values()))
        style.large_numbers(panel)
        panel.set_xlabel("time-steps" if metric == "episode_return" else "examples")
        panel.set_ylabel(WORDS.get(metric, metric))
        style.title(panel, f"{sweep.source}, {len(sweep.seeds)} {'runs' if len(sweep.seeds) > 1 else 'run'} of each")
        style.legend(panels, beside=True)


def sweep_table(curves: Mapping[str, Curves]) -> str:
    """Comma-separated: mean and standard error of every configuration and bin."""
    rows: list[dict[str, Any]] = []
    for name, each in curves.items():
        metric = each.performance
        numbers = zip(each.examples.tolist(), each.mean().tolist(), each.standard_error().tolist(), strict=True)
        rows += [
            {"configuration": name, "examples": examples, f"{metric}_mean": mean, f"{metric}_se": error}
            for examples, mean, error in numbers
        ]
    return tables.to_csv(rows)


def worth(curves: Curves) -> float:
    """By which the best are chosen: the mean over the whole run, the worst possible if a run diverged."""
    means = curves.mean()
    if np.isinf(means).any() or not np.isfinite(means).any():
        return -np.inf
    # A bin without a number: no episode ended in it.
    mean = float(np.nanmean(means))
    return -mean if curves.performance == "error" else mean


def _show(value: str | float | bool) -> str:
    """Exact, so that no two labels are the same."""
    if not isinstance(value, float):
        return str(value)
    if value.is_integer():
        return f"{value:,.0f}"
    short = rate_in_words(value)
    return short if abs(value) < 1e-2 and float(short) == value else repr(value)
