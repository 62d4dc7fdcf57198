"""Initial distributions of weights, and a record on each layer of the one that it was created with."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import nn

from cbp_ray.errors import InputError
from cbp_ray.gains import GAINS
from cbp_ray.randomness import Purpose, uniforms

UnitModule = nn.Linear | nn.Conv2d
UNIT_MODULES = (nn.Linear, nn.Conv2d)

Scheme = Literal["kaiming", "lecun", "xavier", "pytorch"]

MARK = "_cbp_ray_initial_distribution"


@dataclass(frozen=True)
class Distribution:
    """Initial weights of one layer: uniform in [-scale, scale], or normal with standard deviation `scale`.

    Biases start at zero, or uniform in [-bias_scale, bias_scale].

    Example:
      >>> Distribution.uniform(0.5).weight(np.array([0.0, 0.75]))
      array([-0.5 ,  0.25])
    """

    kind: Literal["uniform", "normal"]
    scale: float
    bias_scale: float = 0.0

    @classmethod
    def uniform(cls, bound: float, bias_bound: float = 0.0) -> "Distribution":
        return cls("uniform", bound, bias_bound)

    @classmethod
    def normal(cls, standard_deviation: float, bias_bound: float = 0.0) -> "Distribution":
        return cls("normal", standard_deviation, bias_bound)

    def weight(self, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights from uniform draws in [0, 1)."""
        if self.kind == "normal":
            # Half a step up, so that a draw of exactly 0 stays finite.
            return np.asarray(ndtri(draws + 2.0**-54)) * self.scale
        return (2 * draws - 1) * self.scale

    def bias(self, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Biases from uniform draws in [0, 1)."""
        return (2 * draws - 1) * self.bias_scale


def fans(module: UnitModule) -> tuple[int, int]:
    """Connections into one unit, and out of one input."""
    receptive = math.prod(module.weight.shape[2:])
    return module.weight[0].numel(), module.weight.shape[0] * receptive


def kaiming(fan_in: int, gain: float) -> Distribution:
    """U(-b, b) with b = gain·√(3 / fan_in); biases zero (He et al. 2015; section 3 of the paper)."""
    return Distribution.uniform(gain * math.sqrt(3 / fan_in))


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
            return kaiming(fan_in, GAINS[activation])
        case "lecun":
            return kaiming(fan_in, 1.0)
        case "xavier":
            return Distribution.uniform(math.sqrt(6 / (fan_in + fan_out)))
        case "pytorch":
            return Distribution.uniform(1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
        case _:
            raise InputError(f"init: must be one of kaiming, lecun, xavier, pytorch; got {scheme!r}")


def draw_initial(
    distribution: Distribution, units: int, fan_in: int, seed: int, layer: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A layer's initial weights [units, fan_in] and biases [units], as a function of seed and layer number alone."""
    draws = uniforms(seed, Purpose.INITIAL_WEIGHTS, units * (fan_in + 1), address=(layer, 0, 0))
    weights = distribution.weight(draws[: units * fan_in]).reshape(units, fan_in)
    return weights, distribution.bias(draws[units * fan_in :])


@torch.no_grad()
def initialize(model: nn.Module, scheme: Scheme = "kaiming", *, activation: str = "tanh", seed: int = 0) -> None:
    """Draws every Linear and Conv2d of `model` anew and records the distribution for replacements.

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
