"""The `tune:` block: Ray Tune looks for good settings instead of running all of a grid."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher, create_searcher

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines import row_of
from cbp_ray.results.store import Block, Store
from cbp_ray.sweeps.in_order import Halving, InOrder
from cbp_ray.sweeps.search_log import SearchLog, search_key
from cbp_ray.sweeps.sweep import Sweep, TuneSettings
from cbp_ray.sweeps.trainable import PACKED, pack

DOMAINS = {"uniform": 2, "loguniform": 2, "randint": 2, "choice": None}
"""Kinds of ranges, and how many numbers each takes."""

DRAWS = 100
"""Attempts to draw settings that were not drawn before; a space without any more is exhausted."""


def check_search(sweep: Sweep) -> None:
    """Checks what `tune:` says, all of it, before anything starts."""
    settings = sweep.tune
    assert settings is not None
    for configuration in sweep.configurations:
        known = configuration.config.metrics
        if settings.metric not in known:
            first = next(iter(known))
            raise InputError(f"tune.metric: must be one of {', '.join(sorted(known))}, got {settings.metric!r}; use {first}")
    for path, domain in settings.space.items():
        _domain(path, domain)
    for configuration in sweep.configurations:
        try:
            for point in _ends(settings):
                row_of(with_settings(configuration.config, point), sweep.engine)
        except InputError as error:
            raise InputError(f"tune.space for groups.{configuration.group}: {error}") from None
    if settings.search != "random":
        _searcher(settings)


def search_settings(sweep: Sweep, store: Store, slots: int) -> tune.TuneConfig:
    """What the Tuner needs: a scheduler and a search algorithm."""
    settings = sweep.tune
    assert settings is not None
    examples = max(c.config.examples for c in sweep.configurations)
    grace = settings.scheduler.grace_bins * max(c.config.bin_size for c in sweep.configurations)
    scheduler: InOrder = InOrder()
    if settings.scheduler.name == "asha":
        scheduler = Halving(
            time_attr="examples",
            max_t=examples + 1,
            grace_period=min(grace, examples),
            reduction_factor=settings.scheduler.reduction_factor,
        )
    return tune.TuneConfig(
        metric=settings.metric,
        mode=settings.mode,
        scheduler=scheduler,
        search_alg=ConcurrencyLimiter(BlockSearch(sweep, store), max_concurrent=max(slots, 1)),
        num_samples=settings.samples * len(sweep.configurations),
        reuse_actors=True,
    )


class BlockSearch(Searcher):
    """Asks a search algorithm for settings and makes trials of them: each one configuration with all seeds of the sweep.

    With `random` the same file asks for the same settings again, so a search that was stopped goes on.
    """

    def __init__(self, sweep: Sweep, store: Store) -> None:
        assert sweep.tune is not None
        self._sweep, self._store, self._settings = sweep, store, sweep.tune
        super().__init__(metric=self._settings.metric, mode=self._settings.mode)
        self._space = {path: _domain(path, domain) for path, domain in self._settings.space.items()}
        self._rng = np.random.default_rng(self._settings.seed)
        self._turns = itertools.cycle(range(len(sweep.configurations)))
        random = self._settings.search == "random"
        # One each: what is good for one configuration need not be for another.
        self._inner = {} if random else {turn: _searcher(self._settings) for turn in range(len(sweep.configurations))}
        self._turn_of: dict[str, int] = {}
        self._asked: set[str] = set()
        self._log = SearchLog(store, search_key(sweep))
        self._stored, self._stopped = set(store.names()), set(self._log.stopped())

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        turn = next(self._turns)
        for _ in range(DRAWS):
            if turn in self._inner:
                point: Any = self._inner[turn].suggest(trial_id)
                if not isinstance(point, dict):
                    return point  # type: ignore[no-any-return]
            else:
                point = {path: _draw(domain, self._rng) for path, domain in self._space.items()}
            configuration = self._sweep.configurations[turn]
            config = with_settings(configuration.config, point)
            block = Block(config, self._sweep.engine, self._sweep.seeds)
            if turn in self._inner or block.trial_id not in self._asked:
                break
        else:
            return Searcher.FINISHED  # type: ignore[return-value]
        self._asked.add(block.trial_id)
        self._turn_of[trial_id] = turn
        about: dict[str, Any] = {"metric": self._settings.metric, "every_bins": 1}
        # What an earlier start found out is told to the scheduler and the search algorithm, and not run again.
        if block.name in self._stored:
            about |= {"known": True}
        elif block.name in self._stopped:
            about |= {"known": True, "stop": self._log.read_stop(block.name)}
        return {PACKED: pack(self._store, block, configuration.group, **about)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if inner := self._inner.get(self._turn_of.get(trial_id, -1)):
            inner.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if inner := self._inner.get(self._turn_of.get(trial_id, -1)):
            inner.on_trial_complete(trial_id, result, error)

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: a resumed search goes on from the results."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing, as `save`."""


def with_settings(config: OnlineConfig, point: Mapping[str, Any]) -> OnlineConfig:
    """`config` with some settings replaced, by path: `{"algorithm.replacement_rate": 1e-4, …}`."""
    settings = config.model_dump(mode="json")
    for path, value in point.items():
        *parents, leaf = path.split(".")
        section = settings
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None  # type: ignore[assignment]
        if not isinstance(section, dict) or leaf not in section:
            raise InputError(f"{path}: must be a setting of the configuration, got none of that name; see `groups`")
        section[leaf] = value
    return OnlineConfig.make(settings)


def _domain(path: str, domain: Mapping[str, Any]) -> Any:
    if len(domain) != 1 or next(iter(domain)) not in DOMAINS:
        rule = f"must be one of {', '.join(DOMAINS)}"
        raise InputError(f"tune.space.{path}: {rule}, got {domain!r}; use loguniform: [1e-6, 1e-2]")
    kind, arguments = next(iter(domain.items()))
    if not isinstance(arguments, list) or (DOMAINS[kind] is not None and len(arguments) != DOMAINS[kind]) or not arguments:
        raise InputError(f"tune.space.{path}.{kind}: must be a list of its limits or values, got {arguments!r}; correct it")
    if kind == "choice":
        return tune.choice(arguments)
    low, high = arguments
    numbers = all(isinstance(n, int | float) and not isinstance(n, bool) for n in arguments)
    if not numbers or low >= high or (kind == "loguniform" and low <= 0):
        rule = "0 < low < high" if kind == "loguniform" else "low < high"
        raise InputError(f"tune.space.{path}.{kind}: must be [low, high] with {rule}, got {arguments!r}; correct it")
    return getattr(tune, kind)(low, high)


def _ends(settings: TuneSettings) -> Iterator[dict[str, Any]]:
    """Points that try every choice, and the smallest and the largest value that each range can give, one setting at a time."""
    ends: dict[str, list[Any]] = {}
    for path, domain in settings.space.items():
        kind, arguments = next(iter(domain.items()))
        if kind == "choice":
            ends[path] = list(arguments)
        else:
            low, high = arguments
            ends[path] = [low, high - 1 if kind == "randint" else math.nextafter(high, low)]
    first = {path: values[0] for path, values in ends.items()}
    for path, values in ends.items():
        yield from (first | {path: value} for value in values)


def _draw(domain: Any, rng: np.random.Generator) -> Any:
    value = domain.sample(random_state=rng)
    return value.item() if isinstance(value, np.generic) else value


def _searcher(settings: TuneSettings) -> Searcher:
    try:
        space = {path: _domain(path, domain) for path, domain in settings.space.items()}
        searcher: Searcher = create_searcher(settings.search, space=space, metric=settings.metric, mode=settings.mode)
        return searcher
    except (ImportError, AssertionError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:100]
        raise InputError(f"tune.search: must be random or installed, got {settings.search!r} ({reason}); use random") from None
