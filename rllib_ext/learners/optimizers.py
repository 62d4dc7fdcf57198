"""RLlib's learners make `torch.optim.Adam`; generate-and-test wants a time step per weight, and mini-batches a fast step."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbp_ray.algorithm.adam import RESETS, Adam
from cbp_ray.kernels.adam import adam_step, corrections, corrections_by_age

FEWEST_AGES = 2**15
"""In a table of corrections: more than it takes with the usual betas until the corrections are 1."""
UNLIKE_OURS = ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay")


class FusedAdam(Adam):
    """`cbp_ray.Adam` whose step is one compiled pass over each parameter on a CPU, in float32; elsewhere it is the same.

    The step has the same result to rounding and the same state. At the sizes of the paper's networks, torch's operations read
    and write all weights a dozen times, and cost more than the gradient of a layer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._views: dict[tuple[int, ...], _Views] = {}
        self._tables: dict[tuple[float, float], np.ndarray[Any, np.dtype[np.float32]]] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._views, self._tables = {}, {}

    def reset_weights(self, param: Tensor, dim: int, index: Tensor) -> None:
        super().reset_weights(param, dim, index)
        self._views.clear()

    def _update(self, group: dict[str, Any], params: list[Tensor], place: tuple[torch.dtype, torch.device]) -> None:
        states = [self.state[p] for p in params]
        step: int = states[0]["time_step"]
        same_step = all(state["time_step"] == step for state in states)
        if place != (torch.float32, torch.device("cpu")) or not same_step or not all(_is_matrix(p) for p in params):
            super()._update(group, params, place)
            return
        key = tuple(p.data_ptr() for p in params)
        views = self._views.get(key)
        if views is None:
            views = self._views[key] = _Views(params, states)
        beta1, beta2 = group["betas"]
        corrections(step, views.resets, self._table(beta1, beta2, step), views.first, views.second)
        scalars = [np.float32(x) for x in (group["lr"], 1 - beta1, beta2, 1 - beta2, group["eps"], group["weight_decay"])]
        for p, (shape, arrays) in zip(params, views.of_params, strict=True):
            assert p.grad is not None
            gradient = p.grad.numpy()
            adam_step(*arrays, gradient if gradient.ndim == 2 else gradient.reshape(shape), *scalars)

    def _table(self, beta1: float, beta2: float, oldest: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Corrections by age, up to `oldest` or until they are 1: where units are replaced, every row has an age of its own."""
        table = self._tables.get((beta1, beta2))
        if table is None or (oldest >= table.shape[1] and table[:, -1].min() < 1):
            table = self._tables[beta1, beta2] = np.empty((2, max(FEWEST_AGES, 2 * oldest)), np.float32)
            corrections_by_age(beta1, beta2, table)
        return table


class _Views:
    """Parameters, moments and corrections as NumPy arrays, which cost more to make than a small parameter's step."""

    def __init__(self, params: list[Tensor], states: list[dict[str, Any]]) -> None:
        # A vector is one long row: its resets along dimension 0 are those of the columns.
        shapes = [(p.shape[0], p.shape[1]) if p.ndim == 2 else (1, p.numel()) for p in params]
        names = [RESETS if p.ndim == 2 else ("", RESETS[0]) for p in params]
        vectors = [
            state[name].numpy() if name in state else np.zeros(size, np.int64)
            for state, of_param, shape in zip(states, names, shapes, strict=True)
            for name, size in zip(of_param, shape, strict=True)
        ]
        self.resets = np.concatenate(vectors)
        self.first, self.second = np.empty((2, len(self.resets)), np.float32)
        ends = np.cumsum([len(vector) for vector in vectors])
        pieces = [
            (part[end - len(v) : end]) for v, end in zip(vectors, ends, strict=True) for part in (self.first, self.second)
        ]
        self.of_params = []
        for number, (p, state, shape) in enumerate(zip(params, states, shapes, strict=True)):
            tensors = (p.detach(), state["exp_avg"], state["exp_avg_sq"])
            arrays = [tensor.numpy().reshape(shape) for tensor in tensors]
            self.of_params.append((shape, [*arrays, *pieces[4 * number : 4 * number + 4]]))


def _is_matrix(p: Tensor) -> bool:
    """Or a vector; not a convolution, whose resets don't line up with the rows and columns of a matrix."""
    return p.ndim <= 2 and p.is_contiguous() and p.grad is not None and p.grad.is_contiguous()


def with_time_steps(optimizer: torch.optim.Optimizer, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """`FusedAdam` with the parameters and settings of a new `torch.optim.Adam`; any other optimizer as it is.

    Args:
      optimizer: one that has made no step yet.
      weight_decay: L2 coefficient, for any optimizer that has one.
    """
    if weight_decay:
        for group in optimizer.param_groups:
            if "weight_decay" in group:
                group["weight_decay"] = weight_decay
    if type(optimizer) is not torch.optim.Adam or any(optimizer.defaults.get(name) for name in UNLIKE_OURS):
        return optimizer
    names = ("params", "lr", "betas", "eps", "weight_decay")
    return FusedAdam([{name: group[name] for name in names} for group in optimizer.param_groups])
