"""What a stored result is called. The name says which config, engine and seeds it holds, so that finding needs no opening.

A block is one config with some seeds; its files are named `<config key>-<seeds>`, for example `3f0c…9a-0_99` for the seeds
0 to 99 and `3f0c…9a-0_9+20_99` for those without 10 to 19. The config key is a hash of everything that decides the numbers.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cbp_ray.experiments.config import OnlineConfig

RESULT_VERSION = 2
"""Goes up with every entry under **Changes results** in the changelog: old results are then never mixed with new ones."""

MOST_RANGES = 8
"""Ranges of consecutive seeds in one block, so that names stay short."""

KEY_LENGTH = 20

MOST_SEEDS = 1_000_000
"""Most seeds of a sweep, and so of a block."""

RANGE = re.compile(r"(\d{1,20})_(\d{1,20})", re.ASCII)


def config_key(config: OnlineConfig, engine: str) -> str:
    """Hash of (resolved config, engine, result version), in hexadecimal."""
    return key_of({"config": config.model_dump(mode="json"), "engine": engine, "version": RESULT_VERSION})


def key_of(identity: Mapping[str, Any]) -> str:
    """The same of what a file says of itself, of whatever version it is."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


@dataclass(frozen=True)
class BlockName:
    """One config with some seeds."""

    key: str
    """Key of the config, see `config_key`."""
    seeds: tuple[int, ...]
    """Ascending, without repetition."""

    def __str__(self) -> str:
        return f"{self.key}-{encode_seeds(self.seeds)}"

    @classmethod
    def parse(cls, name: str) -> "BlockName | None":
        """The inverse of `str`; None for a name that is not a block's."""
        key, _, seeds = name.partition("-")
        if len(key) != KEY_LENGTH or not seeds:
            return None
        try:
            return cls(key, decode_seeds(seeds))
        except ValueError:
            return None

    def within(self, seeds: Mapping[str, set[int]]) -> bool:
        """Whether all of it is among `seeds_by_key`."""
        return seeds.get(self.key, set()).issuperset(self.seeds)


def seeds_by_key(names: Iterable[BlockName]) -> dict[str, set[int]]:
    """Which seeds of each config some blocks hold together; none for a config that is not among them."""
    seeds: dict[str, set[int]] = defaultdict(set)
    for name in names:
        seeds[name.key].update(name.seeds)
    return seeds


def encode_seeds(seeds: Sequence[int]) -> str:
    """Ascending seeds as ranges with both ends: `0_99`, `3_3+5_9`."""
    return "+".join(f"{first}_{last}" for first, last in seed_ranges(seeds))


def decode_seeds(text: str) -> tuple[int, ...]:
    """The inverse of `encode_seeds`.

    Raises:
      ValueError: if the text is not of that form.
    """
    seeds: list[int] = []
    for part in text.split("+"):
        match = RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"no range of seeds: {part!r}")
        first, last = int(match[1]), int(match[2])
        # The name of a file may say anything, also that it has more runs than there is memory for their seeds.
        if last < first or len(seeds) + last - first >= MOST_SEEDS or (seeds and first <= seeds[-1]):
            raise ValueError(f"no ascending range of at most {MOST_SEEDS} seeds: {part!r}")
        seeds.extend(range(first, last + 1))
    return tuple(seeds)


def seed_ranges(seeds: Iterable[int]) -> list[tuple[int, int]]:
    """Maximal ranges of consecutive seeds, each with its first and its last."""
    ranges: list[tuple[int, int]] = []
    for seed in sorted(set(seeds)):
        if ranges and ranges[-1][1] == seed - 1:
            ranges[-1] = ranges[-1][0], seed
        else:
            ranges.append((seed, seed))
    return ranges


def describe_seeds(seeds: Iterable[int], most: int = 4) -> str:
    """For a person: `0:100, 120:140`, and how many more."""
    ranges = seed_ranges(seeds)
    shown = ", ".join(f"{first}:{last + 1}" if last > first else str(first) for first, last in ranges[:most])
    return shown + (f" and {len(ranges) - most} more ranges" if len(ranges) > most else "")
