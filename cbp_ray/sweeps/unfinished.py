"""Checkpoints within a trial: a block that was interrupted goes on from its last one, in whatever process comes next."""

from collections.abc import Mapping

from cbp_ray.errors import InputError
from cbp_ray.experiments.checkpoint import Checkpoint, dump, parse
from cbp_ray.experiments.curves import Curves
from cbp_ray.results.keys import BlockName
from cbp_ray.results.storage import Folder
from cbp_ray.results.store import Block, Store, block_names

SUFFIX = ".npz"
CURVES = "curves/"
EXAMPLES = "curves-examples"


def unfinished(store: Store) -> list[BlockName]:
    """The blocks that have a checkpoint."""
    return block_names(_folder(store), SUFFIX)


def drop_stored(store: Store, stored: Mapping[str, set[int]]) -> None:
    """Removes the checkpoints all of whose runs are stored by now, in whatever blocks."""
    for name in unfinished(store):
        if name.within(stored):
            _folder(store).remove(f"{name}{SUFFIX}")


def save(store: Store, block: Block, state: Checkpoint, curves: Curves) -> None:
    """Keeps the learners' state together with the curves so far."""
    metrics = {CURVES + name: values for name, values in curves.metrics.items()}
    _folder(store).write(block.trial_id + SUFFIX, dump({**state, **metrics, EXAMPLES: curves.examples}))


def load(store: Store, block: Block) -> tuple[Checkpoint, Curves] | None:
    """What `save` kept; None if there is nothing, or nothing that can be used."""
    try:
        state = parse(_folder(store).read(block.trial_id + SUFFIX))
        examples = state.pop(EXAMPLES)
    except (FileNotFoundError, InputError, KeyError):
        return None
    metrics = {name.removeprefix(CURVES): state.pop(name) for name in list(state) if name.startswith(CURVES)}
    return state, Curves(block.seeds, examples, metrics)


def remove(store: Store, block: Block) -> None:
    """Removes the checkpoint of a block that is stored now."""
    _folder(store).remove(block.trial_id + SUFFIX)


def _folder(store: Store) -> Folder:
    return store.folder / "checkpoints"
