"""Made-up learning curves for the tests of figures and claims: a world as the paper describes it, and its opposite."""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cbp_ray.experiments import Curves, OnlineConfig
from cbp_ray.figures.registry import FIGURES
from cbp_ray.figures.reproduce import load_figure
from cbp_ray.figures.results import Setting, Settings
from cbp_ray.problems import BitFlippingConfig
from cbp_ray.results import Block, Store
from cbp_ray.sweeps import Sweep
from cbp_ray.sweeps.resolved import record_sweep

RUNS, BINS = 40, 50
Level = Callable[[Setting], tuple[float, float]]
"""The error of a setting at the beginning and at the end."""


@cache
def difficulty(runs: int = RUNS, bins: int = BINS, size: float = 0.1) -> np.ndarray[Any, np.dtype[np.float64]]:
    """How hard the data are, the same for every algorithm: varies slowly within each run."""
    steps = np.random.default_rng(0).normal(size=(runs, bins))
    for t in range(1, bins):
        steps[:, t] = 0.9 * steps[:, t - 1] + np.sqrt(1 - 0.9**2) * steps[:, t]
    return np.exp(size * steps)


def curves(
    first: float, last: float, *, runs: int = RUNS, bins: int = BINS, noise: float = 0.02, seed: int = 0, **metrics: Any
) -> Curves:
    """Runs whose error goes in a straight line from `first` to `last`, up to noise and the difficulty of the data."""
    rng = np.random.default_rng(seed)
    line = np.linspace(first, last, bins) * difficulty(runs, bins) * np.exp(noise * rng.normal(size=(runs, bins)))
    values = {name: np.full((runs, bins), 0.5) for name in BitFlippingConfig.metrics} | {"error": line}
    for name, (start, end) in metrics.items():
        values[name] = np.linspace(start, end, bins) + 0.01 * rng.normal(size=(runs, bins))
    return Curves(tuple(range(runs)), np.arange(1, bins + 1) * 20_000, values)


def setting(first: float, last: float, *, examples: int = 1_000_000, **given: Any) -> Setting:
    """One made-up setting: `setting(0.5, 0.9, algorithm={"name": "bp"}, activation="relu")`."""
    known = ("runs", "bins", "noise", "seed", *BitFlippingConfig.metrics)
    made = {name: given.pop(name) for name in list(given) if name in known}
    config = OnlineConfig.make(
        {
            "algorithm": given.pop("algorithm", {"name": "bp"}),
            "optimizer": {"name": given.pop("optimizer", "sgd"), "step_size": given.pop("step_size", 0.01)},
            "network": {"activation": given.pop("activation", "tanh")},
            "examples": examples,
        }
    )
    assert not given
    return Setting(config, curves(first, last, **made))


def store_made_up(
    sweep: Sweep, storage: Path, lasts: Iterable[float], seeds: Iterable[int] | None = None, block: int = 3
) -> Store:
    """Stores made-up runs of a Bit-Flipping sweep, in blocks of a few seeds, and the sweep's record.

    Args:
      sweep: the configurations.
      storage: where results go.
      lasts: the error at the end of each configuration, which begins at 0.5; not a number for one without results.
      seeds: runs that are stored, all without it.
      block: seeds of a block.
    """
    store, stored = Store(storage, sweep.name), tuple(sweep.seeds if seeds is None else seeds)
    for number, (each, last) in enumerate(zip(sweep.configurations, lasts, strict=True)):
        if np.isnan(last):
            continue
        made = curves(0.5, last, runs=max(stored) + 1, bins=each.config.bins, seed=number)
        examples = np.minimum(np.arange(1, each.config.bins + 1) * each.config.bin_size, each.config.examples)
        for start in range(0, len(stored), block):
            some = stored[start : start + block]
            metrics = {name: values[list(some)] for name, values in made.metrics.items()}
            about = {"host": "here", "seconds": 1.0}
            store.write(Block(each.config, sweep.engine, some), Curves(some, examples, metrics), about)
    record_sweep(sweep, store)
    return store


def world(figure: str, as_in_the_paper: bool, runs: int = RUNS) -> Settings:
    """Results for every setting of a figure, in which all its claims are clearly right, or clearly wrong."""
    sweep = load_figure(FIGURES[figure])
    if FIGURES[figure].problem == "permuted-mnist":
        return Settings(_classified(c.config, as_in_the_paper, runs, n) for n, c in enumerate(sweep.configurations))
    if FIGURES[figure].problem == "slippery-ant":
        return Settings(_walked(c.config, as_in_the_paper, runs, n) for n, c in enumerate(sweep.configurations))
    tell = _paper if as_in_the_paper else _opposite
    return Settings(
        Setting(c.config, _make(Setting(c.config, _NOTHING), tell, number, runs, as_in_the_paper))
        for number, c in enumerate(sweep.configurations)
    )


def accuracy_setting(
    config: dict[str, Any] | OnlineConfig,
    accuracy: tuple[float, float],
    magnitude: tuple[float, float] = (0.5, 0.5),
    *,
    runs: int = RUNS,
    noise: float = 0.002,
    seed: int = 0,
) -> Setting:
    """One made-up setting of Permuted MNIST: accuracy and last layer's weights go in straight lines, up to noise."""
    defaults = {"problem": {"name": "permuted_mnist"}, "optimizer": {"name": "sgd", "step_size": 0.003}, "examples": 3_000_000}
    config = config if isinstance(config, OnlineConfig) else OnlineConfig.make(defaults | config)
    rng = np.random.default_rng(seed)
    bins = np.arange(1, config.bins + 1) * config.bin_size
    lines = {"accuracy": accuracy, "output_weight_magnitude": magnitude}
    shape = (runs, config.bins)
    metrics = {name: np.broadcast_to(0.5, shape) for name in config.metrics} | {
        name: np.linspace(*line, config.bins) + noise * (rng.normal(size=shape) + rng.normal(size=(runs, 1)))
        for name, line in lines.items()
    }
    return Setting(config, Curves(tuple(range(runs)), bins, metrics))


def _walked(config: OnlineConfig, paper: bool, runs: int, number: int) -> Setting:
    """One made-up setting of Slippery Ant, whose return goes in a straight line, up to noise, in 100 bins."""
    empty = Setting(config, _NOTHING)
    match empty.algorithm:
        case "bp":
            line = (1000.0, 300.0) if paper else (1000.0, 1400.0)
        case "l2":
            level = (1000.0 if paper else 600.0) - 20 * _decades(empty, 1e-4) ** 2
            line = (level, level)
        case _:
            level = (1200.0 if paper else 400.0) - 20 * _decades(empty, 1e-4) ** 2
            best = (empty.utility == "overall") == paper
            line = (level, level if best else 0.8 * level) if paper else (level, 0.7 * level if not best else level)
    rng = np.random.default_rng(number)
    size = config.examples // 100
    shape = (runs, 100)
    metrics = {name: np.broadcast_to(0.5, shape) for name in config.metrics} | {
        "episode_return": np.linspace(*line, 100) + 10 * (rng.normal(size=shape) + rng.normal(size=(runs, 1)))
    }
    return Setting(config, Curves(tuple(range(runs)), np.arange(1, 101) * size, metrics))


FALLS: dict[str, dict[Any, float]] = {
    "step_size": {0.01: 0.12, 0.003: 0.06, 0.001: 0.03},
    "task_length": {10_000: 0.2, 100_000: 0.1, 1_000_000: 0.05},
    "width": {100: 0.12, 1000: 0.04},
}
"""How far the accuracy of BP falls in a world like the paper's; the mildest comes last."""


def _classified(config: OnlineConfig, paper: bool, runs: int, number: int) -> Setting:
    empty = Setting(config, _NOTHING)
    accuracy, magnitude = _accuracy(empty, paper)
    if not paper:
        magnitude = magnitude[::-1]
        if empty.algorithm != "bp":
            accuracy = accuracy[::-1]
    return accuracy_setting(config, accuracy, magnitude, runs=runs, seed=number)


def _accuracy(empty: Setting, paper: bool) -> tuple[tuple[float, float], tuple[float, float]]:
    """Accuracy and weights at the beginning and at the end, as in the paper; the opposite is this backwards, but for BP: there
    the mildest falls most, and what should fall most rises."""
    match empty.algorithm:
        case "bp":
            name = "task_length" if empty.task_length != 60_000 else "width" if empty.width != 2000 else "step_size"
            falls = FALLS[name]
            if not paper:
                falls = dict(zip(falls, [-0.02, *list(falls.values())[-2::-1]], strict=True))
            return (0.95, 0.95 - falls[getattr(empty, name)]), (0.2, 0.6)
        case "online_norm":
            return (0.94, 0.84), (0.2, 0.8)
        case "l2":
            level = 0.93 - 0.01 * _decades(empty, 1e-4) ** 2
            return (level, level - 0.02), (0.3, 0.2)
    level = 0.94 - 0.005 * _decades(empty, 1e-5) ** 2
    return (level, level + 0.02), (0.3, 0.2)


_NOTHING = Curves((), np.zeros(0, dtype=np.int64), {})


def _make(empty: Setting, tell: Level, number: int, runs: int, paper: bool) -> Curves:
    first, last = tell(empty)
    inside = {
        "bp": {"saturated": (0.5, 0.9), "input_gradient": (0.15, 0.03)},
        "l2": {"saturated": (0.5, 0.6), "input_gradient": (0.12, 0.12)},
        "cbp": {"saturated": (0.5, 0.6), "input_gradient": (0.12, 0.12)},
        "online_norm": {"saturated": (0.3, 0.3), "input_gradient": (0.2, 0.2)},
        "linear": {},
    }[empty.algorithm]
    if not paper:
        inside = {name: (end, start) for name, (start, end) in inside.items()}
        if empty.algorithm == "online_norm":
            inside = {"saturated": (0.8, 0.8), "input_gradient": (0.05, 0.05)}
    bins = empty.examples // 20_000
    return curves(first, last, runs=runs, bins=bins, seed=number, **inside)


def _decades(empty: Setting, best: float) -> float:
    return float(np.log10(empty.parameter / best))


def _paper(empty: Setting) -> tuple[float, float]:
    activation, adam = empty.activation, empty.optimizer == "adam"
    match empty.algorithm:
        case "linear":
            return (1.2, 1.2) if empty.step_size == 0.003 else (1.3, 1.3)
        case "bp":
            return (0.9, 2.0) if activation == "relu" else (0.8, 1.5)
        case "online_norm":
            return 0.6, 1.0
        case "l2":
            base = 0.45 if adam and activation in ("sigmoid", "elu") else 0.6
            level = base + 0.05 * _decades(empty, 3e-3) ** 2
            return (level, 1.4 * level) if activation == "relu" and not adam else (level, level)
    base = 0.5 if activation in ("relu", "leaky_relu") else 0.48
    extra = {"overall": 0.0, "mean_corrected_contribution": 0.1}.get(str(empty.utility), 0.2)
    level = base + extra + 0.02 * _decades(empty, 1e-4) ** 2
    return level, level


def _opposite(empty: Setting) -> tuple[float, float]:
    activation = empty.activation
    match empty.algorithm:
        case "linear":
            return 3.0, 3.0
        case "bp":
            return (0.7, 0.2) if empty.step_size == 0.001 else (0.9, 0.4)
        case "online_norm":
            return 1.0, 0.8
        case "l2":
            level = 1.5 + 0.01 * _decades(empty, 3e-3) ** 2
            return (1.2 * level, level) if activation == "relu" else (level, 1.4 * level)
    base = 1.0 if activation in ("sigmoid", "elu") else 2.0
    extra = {"overall": 2.0, "mean_corrected_contribution": 1.0}.get(str(empty.utility), 0.0) if activation == "tanh" else 0
    level = base + extra + 0.5 * _decades(empty, 1e-4) ** 2
    return level, 1.4 * level
