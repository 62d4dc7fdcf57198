"""What generate-and-test asks of a network, its optimizer, the settings that name its layers, and a saved state."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm.network import HiddenLayer
from cbp_ray.algorithm.settings import Settings
from cbp_ray.algorithm.watched_layer import Population, WatchedLayer
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import Distribution


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
    for name in init if isinstance(init, dict) else ():
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


def check_state(state: Mapping[str, Any], settings: Settings, populations: list[Population], init: Any) -> None:
    """Refuses a state of other layers, sizes or settings than these."""
    missing = {"settings", "steps", "layers"} - set(state)
    if missing:
        raise InputError(f"load_state_dict: the state lacks {', '.join(sorted(missing))}; pass what state_dict() gave")
    ours = asdict(settings)
    for name, value in state["settings"].items():
        if ours.get(name) != (tuple(value) if isinstance(value, list) else value):
            raise InputError(
                f"load_state_dict: {name} was {value!r} when the state was saved and is {ours.get(name)!r} here; "
                "make GenerateAndTest with the saved settings"
            )
    names = [units.name for units in populations]
    if list(state["layers"]) != names:
        raise InputError(f"load_state_dict: the state is of layers {list(state['layers'])}, here are {names}")
    for units in populations:
        saved = len(state["layers"][units.name]["birth"])
        if saved != units.count:
            raise InputError(f"load_state_dict: layer {units.name!r} had {saved} units, this model's has {units.count}")
        distribution = Distribution(**state["layers"][units.name]["distribution"])
        if init is not None and distribution != units.layer.distribution:
            raise InputError(
                f"load_state_dict: new units of layer {units.name!r} came from {distribution} when the state was saved; "
                f"init={init!r} says {units.layer.distribution}; leave init out"
            )
