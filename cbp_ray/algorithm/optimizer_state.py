"""What an optimizer remembers of a weight, and how to make it forget."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cbp_ray.algorithm.adam import of_run


@torch.no_grad()
def reset_weights(optimizer: Optimizer, param: Tensor, dim: int, index: Tensor, run: int | None = None) -> None:
    """Forgets what `optimizer` remembers of `param`'s weights at `index` along dimension `dim`, or of those of `param[run]`.

    In any `torch.optim` optimizer, every state tensor of the parameter's shape goes back to its value in a fresh optimizer.
    State that is shared by a whole parameter can't be reset for one weight: the scalar `step` of `torch.optim.Adam` and its
    relatives goes on counting, so that the new weight's bias correction is that of an old one (its first updates are too
    large, by (1-β₁)/√(1-β₂), or 3.2 with the usual betas); factored moments (Adafactor) stay.
    `cbp_ray.Adam` keeps a time step per weight.

    An optimizer with a method `reset_weights(param, dim, index)` of its own, such as `cbp_ray.Adam`, is left to do it itself.
    """
    forget = getattr(optimizer, "reset_weights", None)
    if forget is not None:
        forget(param, dim, index, *([] if run is None else [run]))
        return
    for name, value in optimizer.state.get(param, {}).items():
        if isinstance(value, Tensor) and value.ndim > 0 and value.shape == param.shape:
            of_run(value, run).index_fill_(dim, index, _fresh_value(optimizer, param, name))


def _fresh_value(optimizer: Optimizer, param: Tensor, name: str) -> float:
    """What a state tensor holds before the first step: zero, with two exceptions in `torch.optim`."""
    group: dict[str, Any] = next(g for g in optimizer.param_groups if any(p is param for p in g["params"]))
    if isinstance(optimizer, torch.optim.Adagrad) and name == "sum":
        return float(group["initial_accumulator_value"])
    if isinstance(optimizer, torch.optim.Rprop) and name == "step_size":
        return float(group["lr"])
    return 0.0
