"""Any sweep, of the paper or not: what its problem is judged by against examples, a curve per configuration."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cbp_ray.activations import ACTIVATIONS
from cbp_ray.errors import InputError
from cbp_ray.experiments import OnlineConfig
from cbp_ray.figures import style, tables
from cbp_ray.figures.results import Setting, rate_in_words
from cbp_ray.figures.statistics import Array
from cbp_ray.methods.method import COLOURS
from cbp_ray.results import Store
from cbp_ray.results.tensorboard import flat_settings
from cbp_ray.sweeps import Sweep

CYCLE = [COLOURS[name] for name in ("blue", "vermilion", "green", "orange", "purple", "sky", "black")]
REST: dict[str, Any] = {"color": COLOURS["grey"], "linewidth": 0.5, "alpha": 0.6}
MANY = 10
"""Number of bins below which all of them decide the limits of the vertical axis."""
ALGORITHM = "algorithm.name"


def read_sweep(sweep: Sweep, store: Store) -> dict[str, Setting]:
    """Every configuration with its stored runs, by what tells it from the others.

    Raises:
      MissingResults: if a run is not stored.
      InputError: for a search, whose configurations no file lists, and for several problems in one file.
    """
    if sweep.tune is not None:
        raise InputError(f"CONFIG.yaml: must list its settings, got a search (tune); look at it in TensorBoard: {store.folder}")
    names, configs = store.names(), [configuration.config for configuration in sweep.configurations]
    settings = {
        label: Setting(config, store.read_curves(config, sweep.seeds, sweep.engine, names))
        for label, config in zip(labels(configs), configs, strict=True)
    }
    problems = sorted({config.problem.label for config in configs})
    if len(problems) > 1:
        raise InputError(f"CONFIG.yaml: must be about one problem to be drawn, got {' and '.join(problems)}; split the file")
    return settings


def labels(configs: Sequence[OnlineConfig]) -> list[str]:
    """What tells each configuration from the others of its sweep: `CBP, replacement rate 1e-4`."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for config in configs:
        for name, value in flat_settings(config).items():
            values[_comparable(name, config)].add(repr(value))
    found = []
    for config in configs:
        differing = [name for name in flat_settings(config) if len(values[_comparable(name, config)]) > 1]
        differing.sort(key=lambda name: name != ALGORITHM)
        found.append(", ".join(_in_words(name, config) for name in differing))
    return found if len(found) > 1 else [_in_words(ALGORITHM, configs[0])]


def _comparable(name: str, config: OnlineConfig) -> tuple[str, str]:
    """Among which settings a value is compared: a parameter of one method tells nothing about another."""
    return name, config.algorithm.name if name.startswith("algorithm.") and name != ALGORITHM else ""


def _in_words(name: str, config: OnlineConfig) -> str:
    leaf, value = name.rpartition(".")[2], flat_settings(config)[name]
    if name == ALGORITHM:
        return (config.algorithm.ppo_label if _by_reward(config) else None) or config.algorithm.label
    if leaf == "activation":
        return ACTIVATIONS[str(value)].label
    return (str(value) if leaf == "name" else f"{leaf} {_show(value)}").replace("_", " ")


def _by_reward(config: OnlineConfig) -> bool:
    """Whether PPO learns the problem: its examples are then time-steps."""
    return config.problem.performance == "episode_return"


def draw_sweep(sweep: Sweep, settings: Mapping[str, Setting], path: Path) -> None:
    """Draws the settings into `path` with .png and .pdf; of many, the best in colour and the others in grey."""
    configs = [setting.config for setting in settings.values()]
    problem = configs[0].problem
    factor = 100.0 if problem.performance == "accuracy" else 1.0
    means = {name: factor * _mean(setting) for name, setting in settings.items()}
    ranked = sorted(settings, key=lambda name: worth(settings[name]), reverse=True)
    coloured, rest = ranked[: len(CYCLE)], ranked[len(CYCLE) :]
    # The methods' own colours, as in the paper's figures, where they tell the curves apart.
    own = [config.algorithm.look["color"] for config in configs]
    colours = iter(own if len(set(own)) == len(own) else CYCLE)
    with style.canvas(1, 1, path, width=6.2, height=2.6) as panels:
        panel = panels[0, 0]
        for name in rest:
            panel.plot(settings[name].curves.examples, means[name], label=f"the other {len(rest)}", **REST)
        for name, setting in settings.items():
            if name in coloured:
                error = factor * setting.curves.standard_error(problem.performance)
                style.band(panel, setting.curves.examples.astype(float), means[name], error, name, {"color": next(colours)})
        # The first bin, before anything is learned, would squeeze all others together.
        shown = np.concatenate([means[name][len(means[name]) >= MANY :] for name in coloured])
        shown = shown[np.isfinite(shown)]
        if len(shown):
            style.limit(panel, float(shown.min()), float(shown.max()))
        panel.set_xlim(0, max(int(setting.curves.examples[-1]) for setting in settings.values()))
        style.large_numbers(panel)
        panel.set_xlabel("time-steps" if _by_reward(configs[0]) else "examples")
        panel.set_ylabel(problem.performance_label)
        style.title(panel, f"{sweep.source}, {len(sweep.seeds)} {'runs' if len(sweep.seeds) > 1 else 'run'} of each")
        style.legend(panels, beside=True)


def sweep_table(settings: Mapping[str, Setting]) -> str:
    """Mean and standard error of every configuration and bin, as comma-separated text."""
    rows: list[dict[str, Any]] = []
    for name, setting in settings.items():
        metric, curves = setting.config.problem.performance, setting.curves
        columns = ("configuration", "examples", f"{metric}_mean", f"{metric}_se")
        numbers = [array.tolist() for array in (curves.examples, curves.mean(metric), curves.standard_error(metric))]
        rows += [dict(zip(columns, (name, *line), strict=True)) for line in zip(*numbers, strict=True)]
    return tables.to_csv(rows)


def worth(setting: Setting) -> float:
    """How good a configuration is among others: its mean over the whole run, the worst possible if a run diverged."""
    means = _mean(setting)
    if np.isinf(means).any() or not np.isfinite(means).any():
        return -np.inf
    # A bin without a number: no episode ended in it.
    mean = float(np.nanmean(means))
    return -mean if setting.config.problem.performance == "error" else mean


def _mean(setting: Setting) -> Array:
    return setting.curves.mean(setting.config.problem.performance)


def _show(value: str | float | bool) -> str:
    """Exact, so that no two labels are the same."""
    if not isinstance(value, float):
        return str(value)
    if value.is_integer():
        return f"{value:,.0f}"
    short = rate_in_words(value)
    return short if abs(value) < 1e-2 and float(short) == value else repr(value)
