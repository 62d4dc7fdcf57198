"""Initial distributions of a network's layers, and a record on each layer of the one that it was created with."""

import math
from typing import Literal

import torch
from torch import nn

from cbp_ray.activations import GAINS
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import Distribution, bound, draw_initial

UnitModule = nn.Linear | nn.Conv2d
UNIT_MODULES = (nn.Linear, nn.Conv2d)

Scheme = Literal["kaiming", "lecun", "xavier", "pytorch"]

MARK = "_cbp_ray_initial_distribution"


def fans(module: UnitModule) -> tuple[int, int]:
    """Connections into one unit, and out of one input."""
    weight = module.weight[0] if module.weight.ndim == 3 else module.weight  # the first of a stack of runs
    return weight[0].numel(), weight.shape[0] * math.prod(weight.shape[2:])


def distribution_of(scheme: Scheme, module: UnitModule, activation: str | None) -> Distribution:
    """The distribution that `scheme` gives a layer followed by `activation`.

    `kaiming`: U(±gain·√(3/fan_in)) with the paper's gain for the activation. `lecun`: the same with gain 1. `xavier`:
    U(±√(6/(fan_in+fan_out))). All three with zero biases. `pytorch`: what `nn.Linear` and `nn.Conv2d` do by themselves,
    weights and biases in U(±1/√fan_in).
    """
    fan_in, fan_out = fans(module)
    match scheme:
        case "kaiming":
            if activation not in GAINS:
                raise InputError(
                    f"init: no gain is known for the activation {activation!r} (known: {', '.join(GAINS)}); "
                    "pass init={layer name: Distribution.uniform(bound)}"
                )
            return Distribution.uniform(bound(fan_in, activation))
        case "lecun":
            return Distribution.uniform(bound(fan_in, "linear"))
        case "xavier":
            return Distribution.uniform(math.sqrt(6 / (fan_in + fan_out)))
        case "pytorch":
            return Distribution.uniform(1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
        case _:
            raise InputError(f"init: must be one of kaiming, lecun, xavier, pytorch; got {scheme!r}")


@torch.no_grad()
def initialize(model: nn.Module, scheme: Scheme = "kaiming", *, activation: str = "tanh", seed: int = 0) -> None:
    """Draws new weights for every Linear and Conv2d of `model` and records the distribution for replacements.

    Args:
      model: a network that GnT understands.
      scheme: see `distribution_of`. The last layers, which feed nothing, get gain 1.
      activation: the hidden activation, for the gain of `kaiming`; one of `GAINS`.
      seed: seed of the draws.

    Example:
      >>> model = nn.Sequential(nn.Linear(20, 5), nn.Tanh(), nn.Linear(5, 1))
      >>> initialize(model, "kaiming", activation="tanh", seed=1)
    """
    from cbp_ray.algorithm.network import find_hidden_layers  # network.py needs the module types above

    hidden = {layer.unit for layer in find_hidden_layers(model)}
    modules = [(name, m) for name, m in model.named_modules() if isinstance(m, UNIT_MODULES)]
    for number, (name, module) in enumerate(modules):
        distribution = distribution_of(scheme, module, activation if name in hidden else "linear")
        fan_in, _ = fans(module)
        weights, biases = draw_initial(distribution, module.weight.shape[0], fan_in, seed, number)
        module.weight.copy_(torch.from_numpy(weights).view(module.weight.shape))
        if module.bias is not None:
            module.bias.copy_(torch.from_numpy(biases))
        setattr(module, MARK, distribution)


def created_with(name: str, module: UnitModule) -> Distribution:
    """The distribution `module` was created with: the recorded one, or PyTorch's default if its weights look like that."""
    recorded = getattr(module, MARK, None)
    if recorded is not None:
        return recorded  # type: ignore[no-any-return]
    default = distribution_of("pytorch", module, None)
    largest = float(module.weight.detach().abs().max())
    # The largest of n uniform draws is below 1 - 14/n of the bound once in a million.
    plausible = 1 - 14 / module.weight.numel() <= largest / default.scale <= 1 + 1e-5
    if module.bias is not None:
        plausible &= 0 < float(module.bias.detach().abs().max()) <= default.scale * (1 + 1e-5)
    if not plausible:
        raise InputError(
            f"init: {name!r} doesn't look like PyTorch's default (largest {largest:.3g}, bound "
            f"{default.scale:.3g}), and new units must come from the initial distribution; pass init='kaiming', 'lecun', "
            f"'xavier', 'pytorch' or init={{{name!r}: Distribution...}}, create "
            "the weights with cbp_ray.initialize(model), or load trained weights after GenerateAndTest is made"
        )
    return default


def resolve(
    init: Scheme | dict[str, Distribution] | None, name: str, module: UnitModule, activation: str | None
) -> Distribution:
    """The distribution of new units in a layer, from the `init` argument of `GenerateAndTest`."""
    if init is None:
        return created_with(name, module)
    if isinstance(init, dict):
        return init[name] if name in init else created_with(name, module)
    return distribution_of(init, module, activation)
