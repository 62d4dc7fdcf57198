"""What a sweep is: configurations, seeds, an engine, and what a trial needs. `load_sweep` makes one from a YAML file."""

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines import EngineName, row_of
from cbp_ray.experiments.online import check_seeds
from cbp_ray.results.keys import config_key
from cbp_ray.sweeps.document import Document, apply_overrides, merge, read
from cbp_ray.sweeps.grid import expand
from cbp_ray.validation import Count, CountFromZero, NotNegative, Positive

SWEEP_KEYS = ("sweep", "seeds", "engine", "base", "groups", "resources", "scales", "tune")
SCALES = ("paper", "laptop", "smoke")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
RESERVED = ("figures",)
"""Names in the storage that are not sweeps."""
MOST_CONFIGURATIONS = 100_000
MOST_SEEDS = 1_000_000

M = TypeVar("M", bound=BaseModel)


class Resources(BaseModel):
    """What one trial reserves on a node."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    cpu: Positive = 1.0
    """Cores."""
    gpu: NotNegative = 0.0
    """GPUs; 0.25 lets four trials share one."""
    memory_mb: NotNegative = 0.0
    """Memory to reserve; 0 reserves none."""


class SchedulerSettings(BaseModel):
    """Asynchronous successive halving (Li et al. 2020): poor trials end early."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["asha", "none"] = "asha"
    """`none` lets every trial run to its end."""
    grace_bins: Count = 5
    """Bins that every trial may run."""
    reduction_factor: Positive = Field(default=3, gt=1)
    """One of so many trials goes on at every rung."""


class TuneSettings(BaseModel):
    """Finding settings instead of sweeping them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    metric: str = "error"
    """What counts: the mean over seeds in a trial's latest bin."""
    mode: Literal["min", "max"] = "min"
    """Whether small or large is good."""
    samples: Count
    """Configurations tried per group."""
    seed: CountFromZero = Field(default=0, lt=2**32)
    """Of the search."""
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
    """The group of the file it comes from."""
    config: OnlineConfig
    """Everything resolved."""


@dataclass(frozen=True)
class Sweep:
    """What a file asks for."""

    name: str
    """Of the folder of results; several files may share one."""
    seeds: tuple[int, ...]
    """Ascending; every configuration runs once for each."""
    engine: EngineName
    configurations: tuple[Configuration, ...]
    """Each once."""
    resources: Resources = field(default_factory=Resources)
    tune: TuneSettings | None = None
    source: str = "sweep"
    """Name of the file, without its ending."""
    document: Document = field(default_factory=dict, hash=False, compare=False)
    """The file with includes, scale and overrides applied."""
    scale: str = field(default="paper", compare=False)
    """Which overlay of the file was applied."""
    origin: str = field(default="", compare=False)
    """Where the file is: tells two files of one name apart. In a job, within the working directory."""

    @property
    def runs(self) -> int:
        """Configurations times seeds."""
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
      seeds: instead of those in the file: `0:100`, or integers.
      scale: which overlay of `scales` to apply; `paper` needs none.

    Raises:
      InputError: one line with file, field, rule, value and fix.
    """
    path = Path(path)
    document = read(path)
    try:
        document = apply_scale(document, scale)
        document, common = apply_overrides(document, overrides, SWEEP_KEYS)
        if seeds is not None:
            document = {**document, "seeds": seeds if isinstance(seeds, str) else list(seeds)}
        sweep = make_sweep(_into_groups(document, common), path.stem)
        return replace(sweep, scale=scale, origin=_origin(path))
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def _origin(path: Path) -> str:
    path = path.resolve()
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ and path.is_relative_to(Path.cwd()):
        # Ray unpacks the working directory of every job to another place.
        path = path.relative_to(Path.cwd())
    return path.as_posix()


def apply_scale(document: Document, scale: str) -> Document:
    """The overlay of that name over the document."""
    scales = document.get("scales") or {}
    if not isinstance(scales, Mapping):
        raise InputError(f"scales: must be a mapping from names to overlays, got {scales!r}; write smoke: {{seeds: '0:4'}}")
    for name, overlay in scales.items():
        if name not in SCALES:
            raise InputError(f"scales.{name}: must be one of {', '.join(SCALES)}, got {name!r}; {_suggest(str(name), SCALES)}")
        if overlay is not None and not isinstance(overlay, Mapping):
            raise InputError(f"scales.{name}: must be a mapping, got {overlay!r}; write {{seeds: '0:4'}}, say")
        _check_keys(overlay or {}, SWEEP_KEYS, f"scales.{name}.")
    if scale not in SCALES:
        raise InputError(f"scale: must be one of {', '.join(SCALES)}, got {scale!r}; {_suggest(scale, SCALES)}")
    if scale not in scales and scale != "paper":
        raise InputError(f"scale: must be one that the file has, got {scale!r}; it has {', '.join(['paper', *scales])}")
    return merge({k: v for k, v in document.items() if k != "scales"}, scales.get(scale) or {})


def _into_groups(document: Document, common: Document) -> Document:
    """The document with `common` over the settings of every group, whether they stand in the group or in `base`."""
    if not common:
        return document
    base, groups = _section(document, "base"), _groups(document)
    whole = {group: merge(merge(base, own), common) for group, own in groups.items()}
    return {key: value for key, value in document.items() if key != "base"} | {"groups": whole}


def make_sweep(document: Document, source: str = "sweep") -> Sweep:
    """A sweep from a document without includes and scales.

    Raises:
      InputError: one line with field, rule, value and fix.
    """
    _check_keys(document, SWEEP_KEYS, "")
    name = document.get("sweep")
    if name is None:
        raise InputError(f"sweep: must be set, got nothing; add sweep: {source}")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"sweep: must be a name of letters, digits, '.', '_' and '-', got {name!r}; use another")
    if name in RESERVED:
        raise InputError(f"sweep: must not be {name!r}, where `cbp-ray reproduce` puts its drawings; use another")
    engine = document.get("engine", "kernel")
    if engine not in get_args(EngineName):
        raise InputError(f"engine: must be one of {', '.join(get_args(EngineName))}, got {engine!r}; use kernel")
    seeds = parse_seeds(document.get("seeds"))
    tune = _model(TuneSettings, document["tune"], "tune") if document.get("tune") is not None else None
    resources = _model(Resources, document.get("resources") or {}, "resources")
    configurations = _configurations(document, engine)
    check_engines(configurations, engine)
    return Sweep(name, seeds, engine, configurations, resources, tune, source, document)


def _configurations(document: Document, engine: str) -> tuple[Configuration, ...]:
    base = _section(document, "base")
    found: dict[str, Configuration] = {}
    for group, own in _groups(document).items():
        settings = merge(base, own)
        _check_lists(settings, f"groups.{group}")
        for number, point in enumerate(expand(settings)):
            if number >= MOST_CONFIGURATIONS:
                raise InputError(f"groups.{group}: must have at most {MOST_CONFIGURATIONS} points, got more; split the file")
            try:
                config = OnlineConfig.make(point)
            except InputError as error:
                raise InputError(f"groups.{group}.{error}") from None
            found.setdefault(config_key(config, engine), Configuration(group, config))
    return tuple(found.values())


def _groups(document: Document) -> dict[str, Document]:
    groups = document.get("groups")
    if not isinstance(groups, Mapping) or not groups:
        raise InputError(f"groups: must be a mapping from names to settings, got {groups!r}; write groups: {{bp: {{…}}}}")
    for group, own in groups.items():
        if not isinstance(group, str) or not NAME.fullmatch(group):
            raise InputError(f"groups: must have names of letters, digits, '.', '_' and '-', got {group!r}; use another")
        if own is not None and not isinstance(own, Mapping):
            raise InputError(f"groups.{group}: must be a mapping of settings, got {own!r}; write algorithm: {{name: bp}}")
    return {group: dict(own or {}) for group, own in groups.items()}


def _section(document: Document, name: str) -> Document:
    section = document.get(name)
    if section is not None and not isinstance(section, Mapping):
        raise InputError(f"{name}: must be a mapping of settings, got {section!r}; write optimizer: {{…}} below it")
    return dict(section or {})


def _check_lists(settings: Any, where: str) -> None:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            _check_lists(value, f"{where}.{key}")
        elif isinstance(value, list) and not value:
            raise InputError(f"{where}.{key}: must have at least one value, got an empty list; add one or remove the line")


def _check_keys(mapping: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
    for key in mapping:
        if key not in known:
            raise InputError(f"{where}{key}: unknown setting, got {mapping[key]!r}; {_suggest(str(key), known)}")


def _suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def check_engines(configurations: tuple[Configuration, ...], engine: EngineName) -> None:
    """Lets the engine refuse what it can't run.

    Raises:
      InputError: one line that names the group.
    """
    for configuration in configurations:
        try:
            row_of(configuration.config, engine)
        except InputError as error:
            raise InputError(f"groups.{configuration.group}.{error}") from None


def parse_seeds(seeds: Any) -> tuple[int, ...]:
    """`0:100`, one integer, or a list of either; ascending.

    Raises:
      InputError: if it is none of these, is empty, or names a seed twice.
    """
    if seeds is None:
        raise InputError("seeds: must be set, got nothing; add seeds: 0:100")
    items = seeds if isinstance(seeds, list | tuple | range) else [seeds]
    found: list[int] = []
    for item in items:
        if isinstance(item, int) and not isinstance(item, bool):
            found.append(item)
            continue
        match = re.fullmatch(r"\s*(\d+)(?:\s*:\s*(\d+))?\s*", item) if isinstance(item, str) else None
        if match is None:
            raise InputError(f"seeds: must be START:STOP or a list of integers, got {item!r}; use 0:100")
        start, stop = int(match[1]), int(match[2] if match[2] is not None else int(match[1]) + 1)
        if stop <= start:
            fix = f"{stop}:{start}" if stop < start else f"{start}:{start + 1}"
            raise InputError(f"seeds: must have START below STOP, got {item!r}; use {fix}")
        found.extend(range(start, min(stop, start + MOST_SEEDS + 1)))
        if len(found) > MOST_SEEDS:
            break
    if len(found) > MOST_SEEDS:
        raise InputError(f"seeds: must be at most {MOST_SEEDS:,}, got more; use fewer, or several sweeps")
    found.sort()
    # Sorted, the first and the last are valid only if all are.
    check_seeds(found[:1] + found[-1:])
    twice = next((seed for seed, after in pairwise(found) if seed == after), None)
    if twice is not None:
        raise InputError(f"seeds: must name each seed once, got {twice} twice; remove one")
    return tuple(found)


def _model(model: type[M], settings: Any, where: str) -> M:
    if not isinstance(settings, Mapping):
        raise InputError(f"{where}: must be a mapping, got {settings!r}; known are {', '.join(model.model_fields)}")
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        # A misspelt name also shows as a missing one; the spelling is the better hint.
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        path = ".".join([where, *(str(part) for part in first["loc"])])
        if first["type"] == "extra_forbidden":
            fix = _suggest(str(first["loc"][-1]), list(model.model_fields))
            raise InputError(f"{path}: unknown setting, got {first['input']!r}; {fix}") from None
        rule = first["msg"].removeprefix("Value error, ")
        rule = rule[0].lower() + rule[1:]
        got = "nothing" if first["type"] == "missing" else repr(first["input"])
        raise InputError(f"{path}: {rule}, got {got}; change it") from None
