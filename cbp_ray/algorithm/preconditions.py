"""What generate-and-test asks of a network, its optimizer and the settings that name its layers; all else is refused."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm.network import HiddenLayer
from cbp_ray.algorithm.watched_layer import WatchedLayer
from cbp_ray.errors import InputError


def check_same_place(layers: list[WatchedLayer]) -> None:
    """Refuses layers of several devices or dtypes: the averages of all layers stand end to end."""
    for layer in layers[1:]:
        if (layer.device, layer.dtype) != (layers[0].device, layers[0].dtype):
            raise InputError(
                f"model: layer {layer.name!r} is {layer.dtype} on {layer.device}, layer {layers[0].name!r} is "
                f"{layers[0].dtype} on {layers[0].device}; make one GenerateAndTest for each with layers=[...]"
            )


def check_init(init: Any, names: list[str]) -> None:
    """Refuses distributions of layers that are not there."""
    if isinstance(init, dict):
        for name in init:
            if name not in names:
                raise InputError(f"init: {name!r} is not a hidden layer; the hidden layers are {', '.join(names)}")


def optimizers_by_parameter(
    optimizer: Optimizer | Iterable[Optimizer], layers: list[HiddenLayer], modules: dict[str, nn.Module]
) -> dict[Tensor, Optimizer]:
    """The optimizer of each parameter; every parameter of every layer must have one."""
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer) if isinstance(optimizer, Iterable) else []
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        raise InputError(f"optimizer: must be a torch optimizer, or several in a list; got {type(optimizer).__name__}")
    holders = {p: o for o in optimizers for group in o.param_groups for p in group["params"]}
    for layer in layers:
        for name in (layer.unit, *layer.outgoing, *layer.norms):
            for parameter_name, parameter in modules[name].named_parameters(recurse=False):
                if parameter not in holders:
                    raise InputError(
                        f"optimizer: it does not hold the model's parameter '{name}.{parameter_name}'; "
                        "make the optimizer from this model's parameters()"
                    )
    return holders


def check_biases(layers: list[HiddenLayer], modules: dict[str, nn.Module], preset: str) -> None:
    """Refuses layers without a bias for a preset that moves mean contributions into it."""
    for layer in layers:
        for name in layer.outgoing:
            if getattr(modules[name], "bias", None) is None:
                raise InputError(
                    f"preset: {preset!r} moves a removed unit's mean contribution into the bias of {name!r}, which has none; "
                    "give it a bias or use preset='paper'"
                )
