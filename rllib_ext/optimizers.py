"""RLlib's learners make `torch.optim.Adam`; generate-and-test wants a time step per weight, and mini-batches a fast step."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbp_ray.algorithm.adam import RESETS, Adam
from cbp_ray.kernels.adam import adam_step, corrections

UNLIKE_OURS = ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay")


class FusedAdam(Adam):
    """`cbp_ray.Adam` whose step is one compiled pass over each parameter on a CPU, in float32; elsewhere it is the same.

    The step has the same result to rounding and the same state. At the sizes of the paper's networks, torch's operations read
    and write all weights a dozen times, and cost more than the gradient of a layer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._views: dict[Tensor, _Views] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._views = {}

    def _update(self, group: dict[str, Any], params: list[Tensor], place: tuple[torch.dtype, torch.device]) -> None:
        if place != (torch.float32, torch.device("cpu")) or not all(_is_matrix(p) for p in params):
            super()._update(group, params, place)
            return
        beta1, beta2 = group["betas"]
        scalars = [np.float32(x) for x in (group["lr"], 1 - beta1, beta2, 1 - beta2, group["eps"], group["weight_decay"])]
        for p in params:
            state = self.state[p]
            views = self._views.get(p)
            if views is None or views.moment is not state["exp_avg"] or views.address != p.data_ptr():
                views = self._views[p] = _Views(p, state)
            assert p.grad is not None
            gradient = p.grad.numpy()
            step: int = state["time_step"]
            rows, columns = (
                corrections(step, state[name].numpy() if name in state else never, beta1, beta2) for name, never in views.resets
            )
            if p.ndim != 2:
                gradient = gradient.reshape(views.shape)
            adam_step(views.weight, gradient, *views.moments, rows, columns, *scalars)


class _Views:
    """A parameter and its moments as NumPy matrices, which cost more to make than a small parameter's step."""

    def __init__(self, p: Tensor, state: dict[str, Any]) -> None:
        # A vector is one long row: its resets along dimension 0 are those of the columns.
        names = RESETS if p.ndim == 2 else ("", RESETS[0])
        self.shape: tuple[int, int] = (p.shape[0], p.shape[1]) if p.ndim == 2 else (1, p.numel())
        self.resets = [(name, np.zeros(size, np.int64)) for name, size in zip(names, self.shape, strict=True)]
        self.address, self.moment = p.data_ptr(), state["exp_avg"]
        self.weight = p.detach().numpy().reshape(self.shape)
        self.moments = [state[name].numpy().reshape(self.shape) for name in ("exp_avg", "exp_avg_sq")]


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
