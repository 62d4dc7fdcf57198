"""Which blocks a sweep still has to run, and how its seeds are divided into them."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.results.keys import MOST_RANGES, BlockName, config_key, seed_ranges, seeds_by_key
from cbp_ray.results.store import Block, Store
from cbp_ray.sweeps import cost
from cbp_ray.sweeps.search_log import SearchLog, search_key
from cbp_ray.sweeps.sweep import Configuration, Sweep
from cbp_ray.sweeps.unfinished import unfinished

TRIAL_SECONDS = 20.0
"""A trial of about this length is worth scheduling, and little is lost when it must be scheduled again."""

SHORTEST_TRIAL_SECONDS = 5.0
"""Trials are not divided below this length to occupy more cores."""

ROUNDS = 4
"""Trials per core, at least, where there is work enough: otherwise the last trial runs while the other cores wait."""


@dataclass(frozen=True)
class Trial:
    """A block that has to run."""

    group: str
    """The group of its configuration."""
    block: Block
    """The configuration and the seeds that run together."""
    seconds: float
    """Estimated time, on one core and those of its helpers."""


@dataclass(frozen=True)
class Plan:
    """What is left to do, as trials."""

    sweep: Sweep
    trials: tuple[Trial, ...]
    """All trials, the longest first."""
    stored_runs: int
    """Runs of this sweep that are there already, or that a search has stopped."""
    stored_seconds: float = 0.0
    """Estimated time, on one core, that these runs took."""
    resumed: int = 0
    """Trials that go on from a checkpoint."""

    @property
    def runs(self) -> int:
        """Number of runs that are left."""
        return sum(len(trial.block.seeds) for trial in self.trials)

    @property
    def seconds(self) -> float:
        """Estimated time on one core."""
        return sum(trial.seconds for trial in self.trials)

    @property
    def core_seconds(self) -> float:
        """Estimated time of all cores that are reserved together."""
        return sum(trial.seconds * (self.sweep.resources.cpu + trial.block.config.problem.helpers) for trial in self.trials)

    @property
    def memory_bytes(self) -> float:
        """Estimated memory of the largest trial's worker."""
        blocks = (trial.block for trial in self.trials)
        return max((cost.memory_bytes(b.config, b.engine, len(b.seeds)) for b in blocks), default=0.0)

    def wall_seconds(self, slots: int) -> float:
        """Estimated time if `slots` trials run at the same time."""
        longest = max((trial.seconds for trial in self.trials), default=0.0)
        return max(self.seconds / max(slots, 1), longest)


@dataclass(frozen=True)
class Missing:
    """What of a sweep is not stored, before it is divided into trials."""

    sweep: Sweep
    names: tuple[BlockName, ...]
    """All blocks that are stored in the sweep's folder."""
    stored_runs: int
    """Runs of this sweep that are there already, or that a search has stopped."""
    seeds: tuple[tuple[Configuration, set[int], list[BlockName]], ...] = ()
    """Seeds that each configuration lacks, and its blocks that have a checkpoint."""
    samples: int = 0
    """Trials that a search may still begin."""

    @property
    def stored_seconds(self) -> float:
        """Estimated time, on one core, of the runs that are there already."""
        engine, count = self.sweep.engine, len(self.sweep.seeds)
        if self.sweep.tune is not None:
            one = cost.seconds(self.sweep.configurations[0].config, engine, count)
            return one * self.stored_runs / count
        return sum(cost.seconds(c.config, engine, count) * (1 - len(seeds) / count) for c, seeds, _ in self.seeds)

    @property
    def any(self) -> bool:
        """Whether something is left to run."""
        return self.sweep.tune is not None or any(seeds for _, seeds, _ in self.seeds)


def find_missing(sweep: Sweep, store: Store, damaged: Collection[BlockName] = ()) -> Missing:
    """Looks up which runs of a sweep are not stored. Blocks that are damaged do not count as stored."""
    names = tuple(name for name in store.names() if name not in damaged)
    if sweep.tune is not None:
        samples = sweep.tune.samples * len(sweep.configurations)
        known = min(samples, len(SearchLog(store, search_key(sweep)).known(names)))
        return Missing(sweep, names, known * len(sweep.seeds), samples=samples - known)
    stored = seeds_by_key(names)
    begun: dict[str, list[BlockName]] = defaultdict(list)
    for name in unfinished(store):
        begun[name.key].append(name)
    wanted, missing = set(sweep.seeds), []
    for configuration in sweep.configurations:
        key = config_key(configuration.config, sweep.engine)
        missing.append((configuration, wanted - stored[key], begun[key]))
    return Missing(sweep, names, sweep.runs - sum(len(seeds) for _, seeds, _ in missing), tuple(missing))


def make_plan(missing: Missing, slots: int) -> Plan:
    """Divides what is missing into trials, `slots` of which run at the same time."""
    sweep = missing.sweep
    if sweep.tune is not None:
        # Which settings a search will draw, only the search knows: its starting points stand for them. All trials may be
        # stopped early, so this is the most that it can take.
        starts = list(sweep.configurations) * sweep.tune.samples
        blocks = [(start.group, Block(start.config, sweep.engine, sweep.seeds)) for start in starts[: missing.samples]]
    else:
        # Shorter trials if there would not be several for each slot.
        total = sum(cost.seconds(c.config, sweep.engine, len(sweep.seeds)) for c in sweep.configurations)
        target = min(TRIAL_SECONDS, max(SHORTEST_TRIAL_SECONDS, total / (ROUNDS * max(slots, 1))))
        blocks = [
            (configuration.group, Block(configuration.config, sweep.engine, part))
            for configuration, seeds, begun in missing.seeds
            for part in divide(seeds, begun, _block_size(configuration.config, sweep.engine, target))
        ]
    trials = [Trial(group, block, cost.seconds(block.config, sweep.engine, len(block.seeds))) for group, block in blocks]
    begun = {name for _, _, names in missing.seeds for name in names}
    resumed = sum(trial.block.name in begun for trial in trials)
    ordered = tuple(sorted(trials, key=lambda trial: -trial.seconds))
    return Plan(sweep, ordered, missing.stored_runs, missing.stored_seconds, resumed)


def divide(missing: Iterable[int], begun: Sequence[BlockName], size: int) -> list[tuple[int, ...]]:
    """Blocks of at most `size` seeds. Those that have a checkpoint come first, as they were."""
    left = set(missing)
    blocks = []
    for name in begun:
        if left.issuperset(name.seeds):
            blocks.append(name.seeds)
            left.difference_update(name.seeds)
    rest = sorted(left)
    start = 0
    while start < len(rest):
        end = start + size
        while len(seed_ranges(rest[start:end])) > MOST_RANGES:
            end = start + max(1, (end - start) // 2)
        blocks.append(tuple(rest[start:end]))
        start = end
    return blocks


def _block_size(config: OnlineConfig, engine: str, target: float) -> int:
    """Seeds per trial, in whole blocks of those that an engine advances together."""
    if config.problem.helpers:
        return 1  # each run has processes of its own, and a trial reserves cores for those of one
    together = cost.together(config, engine)
    return max(1, math.floor(target / cost.seconds(config, engine, together))) * together
