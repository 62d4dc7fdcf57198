"""A block of runs as a trial of Ray Tune."""

import json
import os
from typing import Any, NamedTuple

import ray
from ray import tune

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines import row_of
from cbp_ray.methods import VARIABLE, know_methods
from cbp_ray.results.keys import decode_seeds, encode_seeds
from cbp_ray.results.store import Block, Store
from cbp_ray.sweeps.block_run import BlockRun, report
from cbp_ray.sweeps.compile_lock import is_ready

PACKED = "block"
"""The one setting of a trial: all of the block as a string, because Tune copies and flattens anything else many times."""


class Unpacked(NamedTuple):
    """What is packed into the setting of a trial."""

    store: Store
    """Where results go."""
    block: Block
    """What the trial runs."""
    group: str
    """The group of its configuration."""
    known: bool
    """Whether a search only hears again what an earlier start found out about the trial."""
    about: dict[str, Any]
    """Further arguments of the trial's `BlockRun`."""


def pack(store: Store, block: Block, group: str, known: bool = False, **about: Any) -> str:
    """The setting of a trial; see `Unpacked`."""
    return json.dumps(
        {
            "storage": store.storage.location,
            "sweep": store.sweep,
            "config": block.config.model_dump(mode="json"),
            "engine": block.engine,
            "seeds": encode_seeds(block.seeds),
            "methods": os.environ.get(VARIABLE, ""),
            "group": group,
            "known": known,
            "about": about,
        }
    )


def bundles(resources: dict[str, float], setting: dict[str, Any]) -> tune.PlacementGroupFactory:
    """What the trial of a setting reserves: the worker's resources, and a core for each process that its run starts."""
    block = unpack(setting[PACKED]).block
    return tune.PlacementGroupFactory([resources, *[{"CPU": 1.0}] * (block.config.problem.helpers * len(block.seeds))])


def unpack(text: str) -> Unpacked:
    """The inverse of `pack`. From here on, this process knows the methods that the packing process knew."""
    spec = json.loads(text)
    know_methods(filter(None, spec["methods"].split(",")))
    block = Block(OnlineConfig.make(spec["config"]), spec["engine"], decode_seeds(spec["seeds"]))
    return Unpacked(Store(spec["storage"], spec["sweep"]), block, spec["group"], spec["known"], spec["about"])


class RunBlock(tune.Trainable):
    """One block as a Tune trial. The actor is used again for the next block, with everything imported and compiled."""

    def setup(self, config: dict[str, Any]) -> None:
        self._run: BlockRun | None = None
        self._setting = config
        self._greeted = False

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Leaves the block that was (with a checkpoint, if a scheduler stopped it) and takes the next."""
        self.cleanup()
        self._setting = new_config
        return True

    def step(self) -> dict[str, Any]:
        # Begun here and not in `setup`: an error here is the trial's, an error there the actor's.
        if self._run is None:
            trial = unpack(self._setting[PACKED])
            # The first that this worker has to say is that it is there: what comes next may take a minute. A search, which
            # judges every report, hears only of bins.
            if not self._greeted and "metric" not in trial.about:
                self._greeted = True
                ready = is_ready(trial.block.config, trial.block.engine)
                return report(phase="in the first bin" if ready else "loading or compiling the kernel")
            self._run = BlockRun(trial.store, trial.block, choose_device(trial.block), **trial.about)
        return self._run.advance()

    def cleanup(self) -> None:
        if self._run is not None:
            self._run.interrupt()
            self._run = None


def choose_device(block: Block) -> str:
    """`cuda` for an engine that takes devices, in a trial that has reserved a GPU or a part of one, which torch can use."""
    if not row_of(block.config, block.engine).takes_device or not ray.is_initialized():
        return "cpu"
    if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
