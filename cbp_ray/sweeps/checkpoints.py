"""Checkpoints within a trial: a block that was interrupted goes on from its last one, in whatever process comes next."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cbp_ray.errors import InputError
from cbp_ray.experiments.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from cbp_ray.experiments.engines.engine import Metrics
from cbp_ray.results.keys import BlockName
from cbp_ray.results.storage import Folder
from cbp_ray.results.store import Block, Store, block_names

SUFFIX = ".npz"
CURVE = "curve/"
EXAMPLES = "curve-examples"


def _folder(store: Store) -> Folder:
    return store.folder / "checkpoints"


def unfinished(store: Store) -> list[BlockName]:
    """The blocks that have a checkpoint."""
    return block_names(_folder(store), SUFFIX)


def drop_stored(store: Store, stored: Mapping[str, set[int]]) -> None:
    """Removes the checkpoints all of whose runs are stored by now, in whatever blocks."""
    for name in unfinished(store):
        if name.within(stored):
            _folder(store).remove(f"{name}{SUFFIX}")


def save(store: Store, block: Block, state: Checkpoint, examples: list[int], points: list[Metrics]) -> None:
    """Keeps the learners' state together with the curves so far."""
    metrics = points[0] if points else {}
    curves = {CURVE + name: np.stack([point[name] for point in points]) for name in metrics}
    whole = {**state, **curves, EXAMPLES: np.array(examples, dtype=np.int64)}
    folder, name = _folder(store), block.trial_id + SUFFIX
    if folder.local is not None:
        save_checkpoint(folder.local / name, whole)
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        save_checkpoint(path, whole)
        folder.write(name, path.read_bytes())


def load(store: Store, block: Block) -> tuple[Checkpoint, list[int], list[Metrics]] | None:
    """What `save` kept; None if there is nothing, or nothing that can be used."""
    folder, name = _folder(store), block.trial_id + SUFFIX
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / name
            path.write_bytes(folder.read(name))
            state = load_checkpoint(path)
        examples = [int(count) for count in state.pop(EXAMPLES)]
    except (FileNotFoundError, InputError, KeyError):
        return None
    curves = {key.removeprefix(CURVE): state.pop(key) for key in list(state) if key.startswith(CURVE)}
    return state, examples, [{metric: rows[i] for metric, rows in curves.items()} for i in range(len(examples))]


def remove(store: Store, block: Block) -> None:
    """After the block is stored."""
    _folder(store).remove(block.trial_id + SUFFIX)
