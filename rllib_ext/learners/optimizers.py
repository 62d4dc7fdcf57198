"""RLlib's learners make `torch.optim.Adam`; generate-and-test wants a time step per weight, and mini-batches a fast step."""

import torch

from cbp_ray.algorithm.adam import Adam

UNLIKE_OURS = ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay")


def with_time_steps(optimizer: torch.optim.Optimizer, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """`cbp_ray.Adam` with the parameters and settings of a new `torch.optim.Adam`; any other optimizer as it is.

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
    return Adam([{name: group[name] for name in names} for group in optimizer.param_groups], fused=True)
