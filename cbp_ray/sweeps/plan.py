"""Which blocks a sweep still has to run, and how its seeds are divided into them."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.results.keys import MOST_RANGES, BlockName, config_key, seed_ranges
from cbp_ray.results.store import Block, Store
from cbp_ray.sweeps import cost
from cbp_ray.sweeps.checkpoints import unfinished
from cbp_ray.sweeps.definition import Sweep

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
    block: Block
    seconds: float
    """Estimate on one core."""

    @property
    def trial_id(self) -> str:
        return self.block.trial_id


@dataclass(frozen=True)
class Plan:
    """What is there, and what is left to do."""

    sweep: Sweep
    trials: tuple[Trial, ...]
    """Longest first."""
    stored_runs: int
    """Runs of this sweep that are there already."""

    @property
    def runs(self) -> int:
        """Runs that are left."""
        return sum(len(trial.block.seeds) for trial in self.trials)

    @property
    def seconds(self) -> float:
        """Estimated time on one core."""
        return sum(trial.seconds for trial in self.trials)

    @property
    def memory_bytes(self) -> float:
        """Estimated memory of the largest trial's worker."""
        needs = (cost.memory_bytes(t.block.config, t.block.engine, len(t.block.seeds)) for t in self.trials)
        return max(needs, default=0.0)

    def wall_seconds(self, slots: int) -> float:
        """Estimated time with so many trials at once."""
        longest = max((trial.seconds for trial in self.trials), default=0.0)
        return max(self.seconds / max(slots, 1), longest)


def make_plan(sweep: Sweep, store: Store, slots: int) -> Plan:
    """Divides the runs that are not stored into trials.

    Args:
      sweep: what is wanted.
      store: where results are.
      slots: trials that run at once.
    """
    stored: dict[str, set[int]] = defaultdict(set)
    for name in store.names():
        stored[name.key].update(name.seeds)
    begun: dict[str, list[BlockName]] = defaultdict(list)
    for name in unfinished(store):
        begun[name.key].append(name)
    wanted, seconds = set(sweep.seeds), _target_seconds(sweep, slots)
    trials, already = [], 0
    for configuration in sweep.configurations:
        config, key = configuration.config, config_key(configuration.config, sweep.engine)
        missing = wanted - stored[key]
        already += len(wanted) - len(missing)
        for seeds in divide(missing, begun[key], _block_size(config, sweep.engine, seconds)):
            block = Block(config, sweep.engine, seeds)
            trials.append(Trial(configuration.group, block, cost.seconds(config, sweep.engine, len(seeds))))
    trials.sort(key=lambda trial: -trial.seconds)
    return Plan(sweep, tuple(trials), already)


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


def _target_seconds(sweep: Sweep, slots: int) -> float:
    """How long a trial should last: shorter if there would not be several for each slot."""
    total = sum(cost.seconds(c.config, sweep.engine, len(sweep.seeds)) for c in sweep.configurations)
    return min(TRIAL_SECONDS, max(SHORTEST_TRIAL_SECONDS, total / (ROUNDS * max(slots, 1))))


def _block_size(config: OnlineConfig, engine: str, target: float) -> int:
    """Seeds per trial, in whole blocks of those that an engine advances together."""
    together = cost.together(config, engine)
    return max(1, math.floor(target / cost.seconds(config, engine, together))) * together
