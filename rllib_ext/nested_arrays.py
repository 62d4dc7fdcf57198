"""States of RLlib as plain arrays: dicts and lists of arrays and scalars, there and back, without pickle."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

TREE = "tree"
"""Name of the array that holds, as JSON, where each of the others belongs."""


def flatten(nested: Any) -> dict[str, NDArray[Any]]:
    """Every array of `nested` under a number, and everything else as text.

    Raises:
      TypeError: if there is something that JSON does not know, and is no array.
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
        if kind == "list":
            return [build(value) for value in content]
        if kind == "tuple":
            return tuple(build(value) for value in content)
        return arrays[content] if kind == "array" else content

    return build(json.loads(str(arrays[TREE])))
