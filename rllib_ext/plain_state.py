"""State as plain data: tensors as NumPy arrays, nests of arrays as named arrays, random generators; without pickle."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import tree
from numpy.typing import NDArray
from torch import Tensor

TREE = "tree"
"""Name of the array that holds, as JSON, where each of the others belongs."""


def to_arrays(state: Any) -> Any:
    """The same nest with arrays in place of tensors; copies, which the next update does not change."""
    return tree.map_structure(lambda leaf: leaf.detach().cpu().numpy().copy() if isinstance(leaf, Tensor) else leaf, state)


def to_tensors(state: Any) -> Any:
    """The same nest with tensors, of the arrays' own types; copies, because arrays may be read-only or shared."""
    return tree.map_structure(lambda leaf: torch.tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, state)


def flatten(nested: Any) -> dict[str, NDArray[Any]]:
    """Every array of a nest under a number, and everything else as text.

    Raises:
      TypeError: if there is something that is no array and that JSON does not know.
    """
    arrays: dict[str, NDArray[Any]] = {}

    def describe(part: Any) -> Any:
        if isinstance(part, dict):
            # Pairs, because keys may be integers.
            return {"dict": [[key, describe(value)] for key, value in part.items()]}
        if isinstance(part, list | tuple):
            return {type(part).__name__: [describe(value) for value in part]}
        if isinstance(part, np.ndarray):
            name = str(len(arrays))
            arrays[name] = part
            return {"array": name}
        return {"value": part.item() if isinstance(part, np.generic) else part}

    text = json.dumps(describe(nested))
    return {TREE: np.array(text), **arrays}


def unflatten(arrays: dict[str, NDArray[Any]]) -> Any:
    """The inverse of `flatten`; named subclasses of dict have become dicts."""

    def build(part: Any) -> Any:
        ((kind, content),) = part.items()
        if kind == "dict":
            return {key: build(value) for key, value in content}
        if kind in ("list", "tuple"):
            values = [build(value) for value in content]
            return tuple(values) if kind == "tuple" else values
        return arrays[content] if kind == "array" else content

    return build(json.loads(str(arrays[TREE])))


def random_state() -> dict[str, Any]:
    """The state of the generators that RLlib seeds and draws from in this process, NumPy's and torch's."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002  # it is what RLlib uses
    return {
        "torch": torch.get_rng_state().numpy().copy(),
        "numpy": [name, np.array(keys), int(position), int(has_gauss), float(gauss)],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Continues where `random_state` was taken."""
    torch.set_rng_state(torch.tensor(state["torch"]))
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
