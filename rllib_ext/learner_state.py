"""A learner's state as plain numbers and NumPy arrays, which any of RLlib's checkpoint formats can hold."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

LOGGER = logging.getLogger("rllib_ext")


def copy_of_state(state: Any) -> Any:
    """The same structure with arrays in place of tensors; copies, which the next update doesn't change."""
    if isinstance(state, Tensor):
        return state.detach().cpu().numpy().copy()
    if isinstance(state, Mapping):
        return {key: copy_of_state(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copy_of_state(value) for value in state)
    return state


def tensors(state: Any) -> Any:
    """The reverse: tensors of the arrays' own types; copies, because arrays may be read-only or shared."""
    if isinstance(state, np.ndarray):
        return torch.tensor(state)
    if isinstance(state, Mapping):
        return {key: tensors(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(tensors(value) for value in state)
    return state


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
