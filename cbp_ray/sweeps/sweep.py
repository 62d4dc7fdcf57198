"""What a sweep is: configurations, seeds, an engine, and what a trial needs. `load_sweep` makes one from a YAML file."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines import NAMES, EngineName, row_of
from cbp_ray.experiments.online import check_seeds
from cbp_ray.results.keys import MOST_SEEDS, config_key
from cbp_ray.sweeps.grid import count_points, expand
from cbp_ray.sweeps.sweep_file import NO_GROUP, Document, read_sweep_file
from cbp_ray.validation import Count, CountFromZero, Model, NotNegative, Positive, make, suggest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of sweeps and groups: they become names of folders, and can lead nowhere else."""
RESERVED = ("figures",)
"""Names of folders in the storage that are not sweeps."""
LOGGERS = ("wandb", "mlflow")
"""Trackers that a sweep file may name."""
MOST_CONFIGURATIONS = 100_000


class Resources(Model):
    """What one trial reserves on a node."""

    cpu: Positive = 1.0
    """Number of cores."""
    gpu: NotNegative = 0.0
    """Number of GPUs; 0.25 lets four trials share one."""
    memory_mb: NotNegative = 0.0
    """Memory to reserve, in megabytes; 0 reserves none."""


class SchedulerSettings(Model):
    """Asynchronous successive halving (Li et al. 2020): poor trials end early."""

    name: Literal["asha", "none"] = "asha"
    """Name of the scheduler; `none` lets every trial run to its end."""
    grace_bins: Count = 5
    """Number of bins that every trial may run."""
    # Of two limits of the same kind Pydantic keeps one: this `gt` must not meet another.
    reduction_factor: NotNegative = Field(default=3, gt=1)
    """At every rung, one trial in this many goes on."""


class TuneSettings(Model):
    """Finding settings instead of sweeping them."""

    metric: str = "error"
    """The metric to search by: its mean over seeds in a trial's latest bin."""
    mode: Literal["min", "max"] = "min"
    """Whether small or large values are good."""
    samples: Count = Field(lt=MOST_CONFIGURATIONS + 1)
    """Number of configurations tried per starting point."""
    seed: CountFromZero = Field(default=0, lt=2**32)
    """Seed of the random search."""
    search: str = "random"
    """`random`, or a search algorithm of Ray Tune whose package is installed: `optuna`, `hyperopt`, `bayesopt`, …"""
    scheduler: SchedulerSettings = SchedulerSettings()
    """When trials end early."""
    space: dict[str, dict[str, Any]] = Field(min_length=1)
    """Where to search: `algorithm.replacement_rate: {loguniform: [1e-6, 1e-2]}`; also uniform, randint, choice."""


@dataclass(frozen=True)
class Configuration:
    """One point of a grid."""

    group: str
    """The group of the file that it comes from; in a file without groups, the name of its method."""
    config: OnlineConfig
    """The settings, everything resolved."""


@dataclass(frozen=True)
class Sweep:
    """What a file asks for."""

    name: str
    """Name of the folder of results; several files may share one."""
    seeds: tuple[int, ...]
    """Every configuration runs once for each of these, which ascend."""
    engine: EngineName
    """Name of the engine that runs them."""
    configurations: tuple[Configuration, ...]
    """The points of all grids, each once."""
    resources: Resources = field(default_factory=Resources)
    """What each trial reserves."""
    tune: TuneSettings | None = None
    """How to search from the configurations; None runs them as they are."""
    loggers: tuple[str, ...] = ()
    """Trackers that are told of every complete configuration: `wandb`, `mlflow`."""
    source: str = "sweep"
    """Name of the file, without its ending."""
    scale: str = field(default="paper", compare=False)
    """Which overlay of the file was applied."""

    @property
    def helpers(self) -> int:
        """Cores that a trial reserves besides `resources`, at most: those of processes that its run starts."""
        most = max(configuration.config.problem.helpers for configuration in self.configurations)
        # A trial of a search has all seeds, other trials one if there are helpers.
        return most * (1 if self.tune is None else len(self.seeds))

    @property
    def runs(self) -> int:
        """Number of runs: configurations times seeds."""
        return len(self.configurations) * len(self.seeds)


def load_sweep(
    path: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    seeds: str | Iterable[int] | None = None,
    scale: str = "paper",
) -> Sweep:
    """Reads a sweep file, checks all of it and expands its grids.

    Args:
      path: the YAML file.
      overrides: `a.b=c` each, as after `--set`.
      seeds: seeds that replace those of the file: `0:100`, or integers.
      scale: which overlay of `scales` to apply; `paper` needs none.

    Raises:
      InputError: one line with file, field, rule, value and fix.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"load_sweep: must get the path of a sweep file, got {path!r}; use 'sweep.yaml', say")
    path = Path(path)
    document = read_sweep_file(path, overrides, seeds, scale)
    try:
        return _make_sweep(document, path.stem, scale)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def _make_sweep(document: Document, source: str, scale: str) -> Sweep:
    """The sweep of a document as `read_sweep_file` gives it."""
    name = document.get("sweep")
    if name is None:
        raise InputError(f"sweep: must be set, got nothing; add sweep: {source}")
    check_name(name)
    engine = document.get("engine", "kernel")
    if engine not in NAMES:
        raise InputError(f"engine: must be one of {', '.join(NAMES)}, got {engine!r}; use kernel")
    tune = None if document.get("tune") is None else make(TuneSettings, document["tune"], "tune")
    resources = make(Resources, document.get("resources") or {}, "resources")
    seeds, loggers = parse_seeds(document.get("seeds")), _loggers(document.get("loggers"))
    sweep = Sweep(name, seeds, engine, _configurations(document["groups"], engine), resources, tune, loggers, source, scale)
    if tune is not None:
        # Here, because it takes Ray Tune to know its search algorithms.
        from cbp_ray.sweeps.search import check_search

        check_search(sweep)
        if (trials := tune.samples * len(sweep.configurations)) > MOST_CONFIGURATIONS:
            raise InputError(f"tune.samples: must give at most {MOST_CONFIGURATIONS} trials, got {trials}; use fewer")
    return sweep


def check_name(name: Any) -> None:
    """Refuses what cannot be the name of a sweep."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"sweep: must be a name of up to 100 letters, digits, '.', '_' and '-', got {name!r}; use another")
    if name in RESERVED:
        raise InputError(f"sweep: must not be {name!r}, where `cbp-ray reproduce` puts its drawings; use another")


def _loggers(names: Any) -> tuple[str, ...]:
    names = [names] if isinstance(names, str) else names or []
    wrong = next((name for name in names if name not in LOGGERS), None) if isinstance(names, list) else names
    if wrong is not None:
        raise InputError(f"loggers: must be a list of {' and '.join(LOGGERS)}, got {wrong!r}; {suggest(str(wrong), LOGGERS)}")
    return tuple(dict.fromkeys(names))


def join(sweeps: Sequence[Sweep], source: str) -> list[Sweep]:
    """The same configurations in as few sweeps as possible, each configuration once.

    Several figures in one sweep keep all cores busy and start Ray once. Groups are named after their files, not to collide.
    """
    if len(sweeps) == 1:
        return list(sweeps)
    alike: dict[str, list[Sweep]] = {}
    for sweep in sweeps:
        alike.setdefault(repr(replace(sweep, configurations=(), source="")), []).append(sweep)
    joint = []
    for number, some in enumerate(alike.values(), start=1):
        found: dict[str, Configuration] = {}
        for sweep in some:
            for each in sweep.configurations:
                own = replace(each, group=f"{sweep.source}.{each.group}")
                found.setdefault(config_key(each.config, sweep.engine), own)
        # Each has a record and a status of its own.
        name = source if len(alike) == 1 else f"{source}-{number}"
        joint.append(replace(some[0], configurations=tuple(found.values()), source=name))
    return joint


def _configurations(groups: Mapping[str, Sequence[Document]], engine: EngineName) -> tuple[Configuration, ...]:
    """The points of all groups' grids, each once, all of which the engine can run."""
    found: dict[str, Configuration] = {}
    points = 0
    for group, sections in groups.items():
        if group != NO_GROUP and (not isinstance(group, str) or not NAME.fullmatch(group)):
            raise InputError(
                f"groups: must have names of up to 100 letters, digits, '.', '_' and '-', got {group!r}; use another"
            )
        where = f"groups.{group}" if group else "base"
        for settings in sections:
            _check_lists(settings, where)
            points += count_points(settings)
        # Counted before any is made: a few short lists can ask for billions.
        if points > MOST_CONFIGURATIONS:
            raise InputError(f"{where}: must have at most {MOST_CONFIGURATIONS} points in all, got {points}; split the file")
        for point in (point for settings in sections for point in expand(settings)):
            try:
                config = OnlineConfig.make(point)
                row_of(config, engine)
            except InputError as error:
                raise InputError(f"{where}.{error}") from None
            found.setdefault(config_key(config, engine), Configuration(group or config.algorithm.name, config))
    return tuple(found.values())


def _check_lists(settings: Mapping[str, Any], where: str) -> None:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            _check_lists(value, f"{where}.{key}")
        elif isinstance(value, list) and not value:
            raise InputError(f"{where}.{key}: must have at least one value, got an empty list; add one or remove the line")


def parse_seeds(seeds: Any) -> tuple[int, ...]:
    """The seeds of `0:100`, `1,2,5:9`, one integer, or a list of these; ascending, each once."""
    if seeds is None:
        raise InputError("seeds: must be set, got nothing; add seeds: 0:100")
    if isinstance(seeds, str):
        seeds = seeds.split(",")
    ranges = [_seed_range(item) for item in (seeds if isinstance(seeds, list | tuple | range) else [seeds])]
    if sum(each.stop - each.start for each in ranges) > MOST_SEEDS:
        raise InputError(f"seeds: must be at most {MOST_SEEDS:,}, got more; use fewer, or several sweeps")
    found = sorted(seed for each in ranges for seed in each)
    # Sorted, the first and the last are valid only if all are.
    check_seeds({*found[:1], *found[-1:]})
    twice = next((seed for seed, after in pairwise(found) if seed == after), None)
    if twice is not None:
        raise InputError(f"seeds: must name each seed once, got {twice} twice; remove one")
    return tuple(found)


def _seed_range(item: Any) -> range:
    if isinstance(item, int) and not isinstance(item, bool):
        return range(item, item + 1)
    # No seed has more than 20 digits, and Python refuses to read thousands of them.
    match = re.fullmatch(r"\s*(\d{1,30})(?:\s*:\s*(\d{1,30}))?\s*", item, re.ASCII) if isinstance(item, str) else None
    if match is None:
        raise InputError(f"seeds: must be START:STOP, integers, or several with commas between, got {item!r}; use 0:100")
    start, stop = int(match[1]), int(match[2] if match[2] is not None else int(match[1]) + 1)
    if stop <= start:
        fix = f"{stop}:{start}" if stop < start else f"{start}:{start + 1}"
        raise InputError(f"seeds: must have START below STOP, got {item!r}; use {fix}")
    return range(start, stop)
