"""The curves so far of blocks that have not ended: in the driver's memory as workers report them, and in `live/` for others.

The files are safe to lose: what they show is made again from reports. They let another process draw what runs, and let a sweep
that was killed show what it showed before until its trials report again.
"""

import contextlib
import time
from collections import defaultdict
from typing import Any

import numpy as np

from cbp_ray.errors import InputError
from cbp_ray.experiments.checkpoint import dump, parse
from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.results.keys import BlockName, seeds_by_key
from cbp_ray.results.store import CHECKPOINT, Block, Store, block_names
from cbp_ray.sweeps.block_run import LIVE_SECONDS, LivePart

KEPT_AT_ONCE = 500
"""Where more trials run than this, each one's file is written less often: of 10,000 the driver wrote nothing but files."""
GLANCE_POINTS = 40
"""Points of the small curve in `cbp-ray status --watch`."""


class LiveCurves:
    """Keeps what is known of blocks that have not ended."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[BlockName, CurveSummary] = {}
        self._kept: dict[BlockName, float] = {}
        self._of_key: dict[str, set[BlockName]] = defaultdict(set)
        """Those of which something is known, here or in a file, by configuration: there may be many thousands in all."""
        stored = seeds_by_key(store.names())
        self._files = {name for name in live_blocks(store) if not name.within(stored)}
        for name in self._files:
            self._of_key[name.key].add(name)

    def report(self, block: Block, part: LivePart) -> None:
        """Takes in what a worker reports."""
        known = self.of(block.name)
        if known is None or (part.first and part.first > len(known.examples)):
            if part.first:
                return  # its beginning is unknown, which only a lost file explains: shown when it is stored
            self._known[block.name] = part.summary
            self._of_key[block.name.key].add(block.name)
        else:
            self._known[block.name] = known.followed_by(part.summary, part.first)
        rarer = max(1.0, len(self._known) / KEPT_AT_ONCE)
        if time.monotonic() - self._kept.get(block.name, float("-inf")) >= 0.8 * LIVE_SECONDS * rarer:
            self.keep(block.name)

    def keep(self, name: BlockName) -> None:
        """Writes what is known of a block."""
        if name in self._known:
            self._kept[name] = time.monotonic()
            # Not to be written is no reason to end a sweep.
            with contextlib.suppress(OSError):
                self._store.live.write(f"{name}{CHECKPOINT}", dump(self._known[name].as_arrays()), lasting=False)
                self._files.add(name)

    def drop(self, name: BlockName) -> None:
        """Forgets a block that is stored now."""
        self._known.pop(name, None)
        self._kept.pop(name, None)
        if name in self._files:
            with contextlib.suppress(OSError):
                self._store.live.remove(f"{name}{CHECKPOINT}")
            self._files.discard(name)
        self._lose(name)

    def _lose(self, name: BlockName) -> None:
        """Takes note that nothing is known of a block any more, here or in a file."""
        if name.key in self._of_key:
            self._of_key[name.key].discard(name)
            if not self._of_key[name.key]:
                del self._of_key[name.key]

    def of(self, name: BlockName) -> CurveSummary | None:
        """What is known of a block, also from the file of an earlier start."""
        if name not in self._known and name in self._files:
            found = read(self._store, name)
            if found is None:
                self._files.discard(name)
                self._lose(name)
            else:
                self._known[name] = found
        return self._known.get(name)

    def names(self, key: str) -> list[BlockName]:
        """The blocks of a configuration of which something is known."""
        return sorted(self._of_key.get(key, ()), key=str)

    def forget(self, name: BlockName) -> None:
        """Leaves a block that runs no more to its file."""
        self.keep(name)
        self._known.pop(name, None)
        self._kept.pop(name, None)
        if name not in self._files:
            self._lose(name)

    def glance(self, block: Block) -> dict[str, Any]:
        """What `cbp-ray status --watch` shows of a block: seeds, latest value, and a curve of few points."""
        found = self._known.get(block.name)
        if found is None or not len(found.examples):
            return {}
        index = np.unique(np.linspace(0, len(found.examples) - 1, GLANCE_POINTS).round().astype(int))
        curve = [float(f"{value:.5g}") if np.isfinite(value) else None for value in found.mean[index]]
        finite = found.mean[np.isfinite(found.mean)]
        return {"metric": found.performance, "value": float(finite[-1]) if len(finite) else None, "curve": curve}


def live_blocks(store: Store) -> list[BlockName]:
    """The blocks that have a file."""
    return block_names(store.live, CHECKPOINT)


def read(store: Store, name: BlockName) -> CurveSummary | None:
    """What the file of a block says; None if there is none, or none that can be used."""
    with contextlib.suppress(OSError, InputError):
        return CurveSummary.from_arrays(parse(store.live.read(f"{name}{CHECKPOINT}")))
    return None
