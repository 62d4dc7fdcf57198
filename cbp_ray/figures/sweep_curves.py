"""Any sweep, of the paper or not: what its problem is judged by against examples, a curve per configuration."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cbp_ray.activations import ACTIVATIONS
from cbp_ray.errors import InputError
from cbp_ray.experiments import OnlineConfig
from cbp_ray.figures import style, tables
from cbp_ray.figures.results import rate_in_words
from cbp_ray.methods.method import COLOURS
from cbp_ray.results import Store
from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.results.keys import BlockName, config_key, seeds_by_key
from cbp_ray.results.run_names import flat_settings
from cbp_ray.sweeps import Sweep
from cbp_ray.sweeps.live_curves import live_blocks
from cbp_ray.sweeps.live_curves import read as read_live
from cbp_ray.sweeps.sweep import Configuration

CYCLE = [COLOURS[name] for name in ("blue", "vermilion", "green", "orange", "purple", "sky", "black")]
REST: dict[str, Any] = {"color": COLOURS["grey"], "linewidth": 0.5, "alpha": 0.6}
MANY = 10
"""Number of bins below which all of them decide the limits of the vertical axis."""
ALGORITHM = "algorithm.name"


@dataclass(frozen=True)
class Drawn:
    """One configuration of a sweep as it is drawn."""

    config: OnlineConfig
    summary: CurveSummary
    """Its curves over the seeds at hand."""
    stored: int
    """Number of seeds that are stored."""
    running: int = 0
    """Number of seeds that are not, and of which the beginning is known."""


def read_sweep(sweep: Sweep, store: Store) -> dict[str, Drawn]:
    """Every configuration of which something is known, stored or running, by what tells it from the others.

    Raises:
      MissingResults: if nothing is.
      InputError: for a search, whose configurations no file lists, and for several problems in one file.
    """
    if sweep.tune is not None:
        raise InputError(f"CONFIG.yaml: must list its settings, got a search (tune); look at it in TensorBoard: {store.folder}")
    problems = sorted({configuration.config.problem.label for configuration in sweep.configurations})
    if len(problems) > 1:
        raise InputError(f"CONFIG.yaml: must be about one problem to be drawn, got {' and '.join(problems)}; split the file")
    names, wanted = store.names(), set(sweep.seeds)
    stored, live = seeds_by_key(names), defaultdict[str, list[BlockName]](list)
    for name in live_blocks(store):
        live[name.key].append(name)
    found = {}
    for label, configuration in zip(labels(sweep.configurations), sweep.configurations, strict=True):
        config, key = configuration.config, config_key(configuration.config, sweep.engine)
        seeds = wanted & stored[key]
        parts = [CurveSummary.of(store.read_curves(config, sorted(seeds), sweep.engine, names))] if seeds else []
        taken, ended = set(seeds), len(seeds)
        for name in live[key]:
            summary = read_live(store, name) if wanted.issuperset(name.seeds) and not taken.intersection(name.seeds) else None
            if summary is not None and len(summary.examples):
                parts.append(summary)
                taken.update(name.seeds)
        if parts:
            found[label] = Drawn(config, CurveSummary.together(parts), ended, len(taken) - ended)
    if not found:
        # Says which runs, and where.
        store.read_curves(sweep.configurations[0].config, sweep.seeds, sweep.engine, names)
    return found


def say_missing(sweep: Sweep, drawn: Mapping[str, Drawn]) -> str:
    """What the picture does not show, in words; empty if it shows all runs to their end."""
    stored, running = sum(each.stored for each in drawn.values()), sum(each.running for each in drawn.values())
    if stored == sweep.runs:
        return ""
    parts = [f"{stored} of {sweep.runs} runs are complete", f"{running} shown so far" if running else ""]
    if absent := sweep.runs - stored - running:
        parts.append(f"{absent} missing")
    if nothing := len(sweep.configurations) - len(drawn):
        parts.append(f"nothing yet of {nothing} configurations")
    return "NOT COMPLETE: " + ", ".join(filter(None, parts))


def labels(configurations: Sequence[Configuration]) -> list[str]:
    """What tells each configuration from the others of its sweep: `CBP, replacement rate 1e-4`.

    A group that has a name of its own, not that of its method, goes by it: `cppo, replacement rate 1e-4`.
    """
    configs = [configuration.config for configuration in configurations]
    if len(configs) == 1:
        return [_group_in_words(configurations[0])]
    named = any(each.group != each.config.algorithm.name for each in configurations)
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    # What is the same within a group, its name tells.
    places = [each.group if named else None for each in configurations]
    for config, place in zip(configs, places, strict=True):
        for name, value in flat_settings(config).items():
            values[_comparable(name, config, place)].add(repr(value))
    found = []
    for configuration, place in zip(configurations, places, strict=True):
        config = configuration.config
        differing = [name for name in flat_settings(config) if len(values[_comparable(name, config, place)]) > 1]
        differing.sort(key=lambda name: name != ALGORITHM)
        group = [_group_in_words(configuration)] if named else []
        found.append(", ".join([*group, *(_in_words(name, config) for name in differing)]))
    return found


def _group_in_words(configuration: Configuration) -> str:
    """The group's name; that of the method in print if the group has no other."""
    config = configuration.config
    return _in_words(ALGORITHM, config) if configuration.group == config.algorithm.name else configuration.group


def _comparable(name: str, config: OnlineConfig, group: str | None) -> tuple[str, str]:
    """Among which settings a value is compared: a parameter of one method tells nothing about another; or those of a group."""
    if group is not None:
        return name, group
    return name, config.algorithm.name if name.startswith("algorithm.") and name != ALGORITHM else ""


def _in_words(name: str, config: OnlineConfig) -> str:
    leaf, value = name.rpartition(".")[2], flat_settings(config)[name]
    if name == ALGORITHM:
        return config.label
    if leaf == "activation":
        return ACTIVATIONS[str(value)].label
    return (str(value) if leaf == "name" else f"{leaf} {_show(value)}").replace("_", " ")


def draw_sweep(sweep: Sweep, drawn: Mapping[str, Drawn], path: Path) -> None:
    """Draws configurations into `path` with .png and .pdf; of many, the best in colour and the others in grey."""
    configs = [each.config for each in drawn.values()]
    problem = configs[0].problem
    factor = 100.0 if problem.performance == "accuracy" else 1.0
    means = {name: factor * each.summary.mean for name, each in drawn.items()}
    ranked = sorted(drawn, key=lambda name: worth(drawn[name]), reverse=True)
    coloured, rest = ranked[: len(CYCLE)], ranked[len(CYCLE) :]
    # The methods' own colours, as in the paper's figures, where they tell the curves apart.
    own = [config.algorithm.look["color"] for config in configs]
    colours = iter(own if len(set(own)) == len(own) else CYCLE)
    with style.canvas(1, 1, path, width=6.2, height=2.6) as panels:
        panel = panels[0, 0]
        for name in rest:
            panel.plot(drawn[name].summary.examples, means[name], label=f"the other {len(rest)}", **REST)
        for name, each in drawn.items():
            if name in coloured:
                error, at = factor * each.summary.standard_error, each.summary.examples.astype(float)
                style.band(panel, at, means[name], error, _with_seeds(sweep, name, each), {"color": next(colours)})
        # The first bin, before anything is learned, would squeeze all others together.
        shown = np.concatenate([means[name][len(means[name]) >= MANY :] for name in coloured])
        shown = shown[np.isfinite(shown)]
        if len(shown):
            style.limit(panel, float(shown.min()), float(shown.max()))
        panel.set_xlim(0, max(int(each.summary.examples[-1]) for each in drawn.values()))
        style.large_numbers(panel)
        panel.set_xlabel(f"{problem.example}s")
        panel.set_ylabel(problem.performance_label)
        if missing := say_missing(sweep, drawn):
            style.note(panel, missing)
        style.title(panel, f"{sweep.source}, {len(sweep.seeds)} {'runs' if len(sweep.seeds) > 1 else 'run'} of each")
        style.legend(panels, beside=True)


def _with_seeds(sweep: Sweep, name: str, each: Drawn) -> str:
    """The label of a curve, with the number of its runs if that is not all."""
    if each.stored == len(sweep.seeds):
        return name
    return f"{name} ({each.stored + each.running} of {len(sweep.seeds)}{' so far' if each.running else ''})"


def sweep_table(drawn: Mapping[str, Drawn]) -> str:
    """Mean and standard error of every configuration and bin, and of how many runs, as comma-separated text."""
    rows: list[dict[str, Any]] = []
    for name, each in drawn.items():
        metric, summary = each.config.problem.performance, each.summary
        columns = ("configuration", "examples", f"{metric}_mean", f"{metric}_se", "runs")
        runs = summary.seeds.astype(int)
        numbers = [array.tolist() for array in (summary.examples, summary.mean, summary.standard_error, runs)]
        rows += [dict(zip(columns, (name, *line), strict=True)) for line in zip(*numbers, strict=True)]
    return tables.to_csv(rows)


def worth(drawn: Drawn) -> float:
    """How good a configuration is among others: its mean over the whole run, the worst possible if a run diverged."""
    means = drawn.summary.mean
    if np.isinf(means).any() or not np.isfinite(means).any():
        return -np.inf
    # A bin without a number: no episode ended in it.
    mean = float(np.nanmean(means))
    return -mean if drawn.config.problem.performance == "error" else mean


def _show(value: str | float | bool) -> str:
    """Exact, so that no two labels are the same."""
    if not isinstance(value, float):
        return str(value)
    if value.is_integer():
        return f"{value:,.0f}"
    short = rate_in_words(value)
    return short if abs(value) < 1e-2 and float(short) == value else repr(value)
