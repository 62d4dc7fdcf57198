"""Checkpoints within a trial: a block that was interrupted goes on from its last one, in whatever process comes next."""

from cbp_ray.errors import InputError
from cbp_ray.experiments.checkpoint import Checkpoint, dump, parse
from cbp_ray.experiments.curves import Curves
from cbp_ray.results.keys import BlockName
from cbp_ray.results.store import CHECKPOINT, Block, Store, block_names

CURVES = "curves/"
EXAMPLES = "curves-examples"


def unfinished(store: Store) -> list[BlockName]:
    """The blocks that have a checkpoint."""
    return block_names(store.checkpoints, CHECKPOINT)


def save(store: Store, block: Block, state: Checkpoint, curves: Curves) -> None:
    """Keeps the learners' state together with the curves so far."""
    metrics = {CURVES + name: values for name, values in curves.metrics.items()}
    store.checkpoints.write(block.trial_id + CHECKPOINT, dump({**state, **metrics, EXAMPLES: curves.examples}))


def load(store: Store, block: Block) -> tuple[Checkpoint, Curves] | None:
    """What `save` kept; None if there is nothing.

    Raises:
      InputError: if it can't be used; the message names it.
    """
    unusable = f"checkpoint {block.trial_id} is damaged or of another version; the trial begins anew"
    try:
        state = parse(store.checkpoints.read(block.trial_id + CHECKPOINT))
        examples = state.pop(EXAMPLES)
        bins = int(state["bins"])
    except FileNotFoundError:
        return None
    except (InputError, KeyError, ValueError, TypeError):
        raise InputError(unusable) from None
    metrics = {name.removeprefix(CURVES): state.pop(name) for name in list(state) if name.startswith(CURVES)}
    wanted = [min((k + 1) * block.config.bin_size, block.config.examples) for k in range(min(bins, block.config.bins))]
    whole, shape = examples.tolist() == wanted and set(metrics) == set(block.config.metrics), (len(block.seeds), bins)
    if not (whole and 0 <= bins <= block.config.bins) or any(
        values.shape != shape or values.dtype.kind not in "fiu" for values in metrics.values()
    ):
        raise InputError(unusable)
    return state, Curves(block.seeds, examples, metrics)


def remove(store: Store, block: Block) -> None:
    """Removes the checkpoint of a block that is stored now."""
    store.checkpoints.remove(block.trial_id + CHECKPOINT)
