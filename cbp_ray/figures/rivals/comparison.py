"""Two stages: the grid of every competitor on a few seeds, and the best setting of each on fresh ones.

A competitor is a group of `tune_configs/rivals/<stream>.yaml`. Competitors meet within a *kind*: one activation and one
optimizer. All see the same data in the run of a given seed, so every comparison is paired.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import as_file, files
from typing import Any, NamedTuple

import numpy as np

from cbp_ray.experiments import OnlineConfig
from cbp_ray.experiments.engines import make_engine
from cbp_ray.figures import statistics
from cbp_ray.figures.claims import LEVEL, Evidence
from cbp_ray.figures.reproduce import CONFIGS, read_settings
from cbp_ray.figures.results import Setting, Settings
from cbp_ray.figures.rivals.streams import Stream
from cbp_ray.figures.statistics import Array
from cbp_ray.results.keys import config_key
from cbp_ray.sweeps import Sweep, load_sweep
from cbp_ray.sweeps.sweep import Configuration

BASELINE = "bp"
OUTSIDE = ("full_reset", "linear")
"""Competitors without a rank: an oracle, and a network that has no plasticity to lose."""
EDGE = "*"
"""Marks a value at the end of its grid."""
TIMES = 10
"""Repetitions of the measurement of costs."""


WORDS = {"relu": "ReLU", "sgd": "SGD", "adam": "Adam"}


class Kind(NamedTuple):
    """What competitors have in common."""

    activation: str
    optimizer: str

    def __str__(self) -> str:
        return f"{WORDS.get(self.activation, self.activation)}, {WORDS.get(self.optimizer, self.optimizer)}"


def kind_of(config: OnlineConfig) -> Kind:
    """The kind of a setting."""
    return Kind(config.network.activation, config.optimizer.name)


def load_stream(stream: Stream, scale: str) -> Sweep:
    """The first stage of a stream: every competitor with its grid."""
    with as_file(files(CONFIGS)) as directory:
        return load_sweep(directory / "rivals" / f"{stream.key.replace('-', '_')}.yaml", scale=scale)


@dataclass(frozen=True)
class Chosen:
    """A competitor of one kind: its grid, and the best of it."""

    kind: Kind
    group: str
    swept: tuple[Setting, ...]
    """Its settings in the first stage."""

    @cached_property
    def best(self) -> Setting:
        """The setting of least total error."""
        return min(self.swept, key=lambda setting: setting.mean_total)

    @cached_property
    def at_the_edge(self) -> set[str]:
        """Names of its settings whose best value is the smallest or the largest tried, and not the smallest there is, 0."""
        tried: dict[str, set[float]] = {}
        for setting in self.swept:
            for name, value in _numbers_of(setting).items():
                tried.setdefault(name, set()).add(value)
        best = _numbers_of(self.best).items()
        return {
            name for name, value in best if value and len(tried[name]) > 1 and value in (min(tried[name]), max(tried[name]))
        }

    def share_better_than(self, other: "Chosen") -> float:
        """The share of its settings that are better than the best of another."""
        return float(np.mean([setting.mean_total < other.best.mean_total for setting in self.swept]))


def _numbers_of(setting: Setting) -> dict[str, float]:
    """The numbers that grids have values for: step size, input normalisation, and the method's own."""
    config = setting.config
    own = {"step_size": setting.step_size, "input_norm": config.network.input_norm, **config.algorithm.model_dump()}
    return {name: value for name, value in own.items() if isinstance(value, int | float) and not isinstance(value, bool)}


def choose(stream: Stream, sweep: Sweep, storage: str) -> list[Chosen]:
    """The best setting of every competitor of every kind, and those that are published.

    Raises:
      MissingResults: if a run of the first stage is not stored.
    """
    found: dict[tuple[Kind, str], list[Setting]] = {}
    for each, setting in zip(sweep.configurations, read_settings(sweep, storage), strict=True):
        found.setdefault((kind_of(each.config), each.group), []).append(setting)
    for name, group, properties in stream.published:
        for (kind, own), settings in list(found.items()):
            if own == group and (such := [setting for setting in settings if setting.has(**properties)]):
                found[kind, name] = such
    return [Chosen(kind, group, tuple(settings)) for (kind, group), settings in found.items()]


def second_stage(stream: Stream, sweep: Sweep, chosen: Iterable[Chosen], examples: int) -> Sweep:
    """The chosen settings on the seeds of the report, with runs of this length."""
    configurations: dict[str, Configuration] = {}
    for one in chosen:
        config = lengthened(one.best.config, examples)
        configurations.setdefault(config_key(config, sweep.engine), Configuration(one.group, config))
    seeds, source = tuple(stream.stage(sweep.scale).seeds), f"{sweep.source}_report_{examples}"
    return replace(sweep, configurations=tuple(configurations.values()), seeds=seeds, source=source)


def lengthened(config: OnlineConfig, examples: int) -> OnlineConfig:
    """The same experiment with runs of another length."""
    return OnlineConfig.make({**config.model_dump(mode="json"), "examples": examples})


@dataclass(frozen=True)
class Place:
    """One competitor in the report."""

    chosen: Chosen
    setting: Setting
    """The chosen setting with its runs on fresh seeds."""
    total: tuple[float, float, float]
    """Mean error per example over whole runs, and both ends of its interval."""
    late: float
    """Mean error at the end."""
    rise: float
    """How far the late error lies above its low point, as a fraction; adjusted where there is a linear tracker."""
    rank: tuple[int, int, int] | None
    """Rank by total error, and both ends of its interval; None for those outside of the competition."""
    share: float
    """Share of its settings that are better than the best Backprop."""
    cost: float
    """Time per example against Backprop in the same engine."""

    @property
    def performance(self) -> str:
        """The metric that the problem is judged by: `error`, or `accuracy`, which is 1 - the error."""
        return self.setting.config.problem.performance

    @property
    def row(self) -> dict[str, Any]:
        """The same as a row of a table."""
        method = self.setting.config.algorithm.model_dump(exclude={"name"}, exclude_defaults=True)
        norm = self.setting.config.network.input_norm
        own = {"step_size": self.setting.step_size, **({"input_norm": norm} if norm else {}), **method}
        marks = dict.fromkeys(self.chosen.at_the_edge, EDGE)
        shown = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in own.items()}
        words = [f"{name}={value}{marks.get(name, '')}" for name, value in shown.items()]
        return {
            "activation": self.chosen.kind.activation,
            "optimizer": self.chosen.kind.optimizer,
            "competitor": self.chosen.group,
            "setting": ", ".join(words),
            "total_error": self.total[0],
            "low": self.total[1],
            "high": self.total[2],
            "late_error": self.late,
            "rise": self.rise,
            "rank": "" if self.rank is None else self.rank[0],
            "rank_low": "" if self.rank is None else self.rank[1],
            "rank_high": "" if self.rank is None else self.rank[2],
            "share_better_than_bp": self.share,
            "cost": self.cost,
            "runs": len(self.setting.curves.seeds),
            "diverged": self.setting.diverged,
        }


class Across(NamedTuple):
    """One competitor in all kinds."""

    group: str
    ratios: tuple[float, ...]
    """Its total error over the least of any competitor, kind by kind."""
    mean: float
    """Their geometric mean."""


class Report(Evidence):
    """What came out: the chosen settings on fresh seeds, with means over all runs and over resamples of them."""

    def __init__(self, stream: Stream, chosen: Sequence[Chosen], sweep: Sweep, storage: str) -> None:
        self.stream, self.examples = stream, sweep.configurations[0].config.examples
        self.chosen = {(one.kind, one.group): one for one in chosen}
        settings = {config_key(setting.config, sweep.engine): setting for setting in read_settings(sweep, storage)}
        keys = {
            place: config_key(lengthened(one.best.config, self.examples), sweep.engine) for place, one in self.chosen.items()
        }
        self.found = {place: settings[key] for place, key in keys.items()}
        super().__init__(Settings(self.found.values()))

    @property
    def kinds(self) -> list[Kind]:
        """All kinds, in the order of the sweep."""
        return list(dict.fromkeys(kind for kind, _ in self.chosen))

    def groups(self, kind: Kind) -> list[str]:
        """The competitors of a kind."""
        return [group for own, group in self.chosen if own == kind]

    def has(self, kind: Kind, *groups: str) -> bool:
        """Whether a kind has all of some competitors."""
        return all((kind, group) in self.found for group in groups)

    def total_of(self, kind: Kind, group: str) -> Array:
        """Total error of a competitor, [1 + resamples]."""
        return self.mean(self.found[kind, group].total)

    def rise(self, setting: Setting) -> Array:
        if self.stream.adjusts:
            return super().rise(setting)
        error = statistics.finite(setting.error)
        return np.asarray(self.mean(statistics.late(error)) / self.mean(statistics.low_point(error)[0]) - 1)

    def linear(self, setting: Setting) -> Setting:
        return self.found[kind_of(setting.config), "linear"]

    def across_kinds(self) -> list[Across]:
        """The competitors that are ranked in every kind, with their errors against the least of each kind, the best first."""
        everywhere = [group for group in self.groups(self.kinds[0]) if all(self.has(kind, group) for kind in self.kinds)]
        ranked = [group for group in everywhere if group not in OUTSIDE]
        errors = np.array([[float(self.total_of(kind, group)[0]) for kind in self.kinds] for group in ranked])
        least = [
            min(float(self.total_of(kind, group)[0]) for group in self.groups(kind) if group not in OUTSIDE)
            for kind in self.kinds
        ]
        ratios = errors / np.array(least)
        found = [
            Across(group, tuple(own), float(np.exp(np.log(own).mean()))) for group, own in zip(ranked, ratios, strict=True)
        ]
        return sorted(found, key=lambda across: across.mean)

    def places(self, kind: Kind) -> list[Place]:
        """The competitors of a kind, the best first."""
        ranked = [group for group in self.groups(kind) if group not in OUTSIDE]
        totals = np.stack([self.total_of(kind, group) for group in ranked])
        ranks = dict(zip(ranked, totals.argsort(axis=0).argsort(axis=0) + 1, strict=True))
        baseline = self.chosen[kind, BASELINE]
        unit = seconds_per_example(self.stream, baseline.best.config)
        places = []
        for group in self.groups(kind):
            setting, one = self.found[kind, group], self.chosen[kind, group]
            total = self.total_of(kind, group)
            low, high = statistics.interval(total, LEVEL, self.settings.runs)
            rank = None
            if group in ranks:
                ends = np.quantile(ranks[group][1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
                rank = int(ranks[group][0]), math.floor(ends[0]), math.ceil(ends[1])
            places.append(
                Place(
                    chosen=one,
                    setting=setting,
                    total=(float(total[0]), low, high),
                    late=float(self.late(setting)[0]),
                    rise=float(self.rise(setting)[0]),
                    rank=rank,
                    share=one.share_better_than(baseline),
                    cost=1.0 if group == BASELINE else seconds_per_example(self.stream, one.best.config) / unit,
                )
            )
        return sorted(places, key=lambda place: place.total[0])


_measured: dict[tuple[str, str], float] = {}


def seconds_per_example(stream: Stream, config: OnlineConfig) -> float:
    """Processor time per example of one run, measured once: the least of several, without what a bin costs in any case."""
    key = stream.key, config.model_dump_json()
    if key not in _measured:
        _measured[key] = _measure(stream, config)
    return _measured[key]


def _measure(stream: Stream, config: OnlineConfig) -> float:
    engine = make_engine(config, "kernel", range(stream.at_once))
    short, long = stream.timed
    engine.advance(short)
    least = {short: math.inf, long: math.inf}
    for _ in range(TIMES):
        for examples in least:
            begun = time.thread_time()
            engine.advance(examples)
            least[examples] = min(least[examples], time.thread_time() - begun)
    return (least[long] - least[short]) / (long - short) / stream.at_once
