"""Rivals of Continual Backprop that act on single weights; `cbp_ray.algorithm.weights` has their equations."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from cbp_ray.methods.method import COLOURS, AfterStep, Method
from cbp_ray.validation import Count, DecayRate, NotNegative, Positive, Rate, SectionError

if TYPE_CHECKING:
    from torch import nn

    from cbp_ray.methods.method import Layers, Optimizers


class _WeightMethod(Method):
    """What all have in common: RLlib's learners have them, too."""

    def rllib(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name", "weight_decay"})


def _one(seed: int | Sequence[int]) -> int:
    assert isinstance(seed, int)  # they do not take networks in a stack
    return seed


class L2Init(_WeightMethod):
    """Backprop with L2 regularisation towards the initial parameters (Kumar et al. 2023)."""

    label = "L2-Init"
    ppo_label = "PPO+L2-Init"
    swept = "strength"
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["orange"], "marker": "v", "linestyle": (0, (4, 2))}

    name: Literal["l2_init"] = "l2_init"
    """Name of the method in configs."""
    strength: NotNegative
    """λ: the gradient becomes g + λ (w - w₀)."""

    def after_step(
        self, model: "nn.Module", optimizer: "Optimizers", seed: int | Sequence[int], layers: "Layers" = None
    ) -> AfterStep:
        from cbp_ray.algorithm.weights import L2Init

        return L2Init(model, optimizer, self.strength)

    def kernel(self) -> dict[str, Any]:
        return {"rule": "l2_init", "strength": self.strength} if self.strength else {}


class WassersteinRegularization(_WeightMethod):
    """Backprop with regularisation towards the initial distribution of the weights (Lewandowski et al. 2023)."""

    label = "Wasserstein"
    ppo_label = "PPO+Wasserstein"
    swept = "strength"
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["orange"], "marker": "^", "linestyle": (0, (1, 1))}

    name: Literal["wasserstein"] = "wasserstein"
    """Name of the method in configs."""
    strength: NotNegative
    """λ: the gradient becomes g + λ (w - w₀'), where w₀' are the initial weights in the order of w."""

    def after_step(
        self, model: "nn.Module", optimizer: "Optimizers", seed: int | Sequence[int], layers: "Layers" = None
    ) -> AfterStep:
        from cbp_ray.algorithm.weights import Wasserstein

        return Wasserstein(model, optimizer, self.strength)


class PerturbedBackprop(_WeightMethod):
    """Shrink and perturb (Ash and Adams 2020), in one of its online forms."""

    label = "S&P"
    ppo_label = "PPO+S&P"
    swept = "noise"
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["purple"], "marker": "P"}

    name: Literal["shrink_perturb"] = "shrink_perturb"
    """Name of the method in configs."""
    noise: NotNegative
    """σ of the noise that is added in every step."""
    variant: Literal["nature2024", "gradient", "initial"] = "nature2024"
    """Which form; see `cbp_ray.algorithm.weights.ShrinkAndPerturb`."""
    shrinkage: Rate = 0.0
    """s of variant `initial`; the others shrink by weight decay."""
    weight_decay: NotNegative = 0.0
    """λ: the gradient becomes g + λ w."""

    @model_validator(mode="after")
    def _shrinks_once(self) -> Self:
        if self.shrinkage and self.variant != "initial":
            raise SectionError(f".shrinkage: is of variant 'initial', got it with {self.variant!r}; use weight_decay")
        return self

    def after_step(
        self, model: "nn.Module", optimizer: "Optimizers", seed: int | Sequence[int], layers: "Layers" = None
    ) -> AfterStep:
        from cbp_ray.algorithm.weights import ShrinkAndPerturb

        return ShrinkAndPerturb(model, optimizer, self.noise, self.variant, self.shrinkage, _one(seed))

    def kernel(self) -> dict[str, Any]:
        rules = {"nature2024": "perturb", "gradient": "perturb_gradient", "initial": "perturb_initial"}
        if not self.noise and not self.shrinkage:
            return {}
        return {"rule": rules[self.variant], "noise": self.noise, "shrinkage": self.shrinkage}


class ClippedBackprop(_WeightMethod):
    """Weight clipping (Elsayed et al. 2024)."""

    label = "clipping"
    ppo_label = "PPO+clipping"
    swept = "factor"
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["sky"], "marker": "d"}

    name: Literal["clipping"] = "clipping"
    """Name of the method in configs."""
    factor: Positive
    """κ: weights stay within ±κ times the bound of their initial distribution."""
    last_layer: bool = True
    """Whether the last layer is clipped, too."""

    def after_step(
        self, model: "nn.Module", optimizer: "Optimizers", seed: int | Sequence[int], layers: "Layers" = None
    ) -> AfterStep:
        from cbp_ray.algorithm.weights import WeightClipping

        return WeightClipping(model, optimizer, self.factor, self.last_layer, layers)

    def kernel(self) -> dict[str, Any]:
        return {"rule": "clip", "clip": self.factor, "clip_out": self.factor if self.last_layer else math.inf}


class UtilityPerturbedBackprop(_WeightMethod):
    """UPGD-W, first order, with the global scaling (Elsayed and Mahmood 2024); AdaUPGD with Adam."""

    label = "UPGD"
    ppo_label = "PPO+UPGD"
    swept = "noise"
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["green"], "marker": "X", "linestyle": (0, (4, 2))}

    name: Literal["upgd"] = "upgd"
    """Name of the method in configs."""
    noise: NotNegative
    """σ of the noise in the gradient."""
    decay_rate: DecayRate = 0.9999
    """β of the utilities' traces."""
    protects: bool = True
    """Whether weights of use keep what they have learned."""
    weight_decay: NotNegative = 0.0
    """λ: the gradient becomes g + λ w."""

    def after_step(
        self, model: "nn.Module", optimizer: "Optimizers", seed: int | Sequence[int], layers: "Layers" = None
    ) -> AfterStep:
        from cbp_ray.algorithm.weights import UPGD

        return UPGD(model, optimizer, self.noise, self.decay_rate, self.protects, _one(seed))

    def kernel(self) -> dict[str, Any]:
        if not self.noise and not self.protects:
            return {}
        rule = "upgd" if self.protects else "upgd_unprotected"
        return {"rule": rule, "noise": self.noise, "trace_decay": self.decay_rate}


class WeightReinitialization(_WeightMethod):
    """Selective weight reinitialisation, proportional (Hernandez-Garcia et al. 2025)."""

    label = "SWR"
    ppo_label = "PPO+SWR"
    swept = "rate"
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["blue"], "marker": "*", "linestyle": (0, (4, 2))}

    name: Literal["swr"] = "swr"
    """Name of the method in configs."""
    rate: Rate
    """ρ, the share of a parameter's weights that is drawn anew each time."""
    every: Count = 1000
    """Steps from one time to the next."""
    utility: Literal["gradient", "magnitude", "random"] = "gradient"
    """What decides: |g w|, |w|, or chance."""
    decay_rate: DecayRate = 0.0
    """β of the utilities' traces."""
    weight_decay: NotNegative = 0.0
    """λ: the gradient becomes g + λ w."""

    def after_step(
        self, model: "nn.Module", optimizer: "Optimizers", seed: int | Sequence[int], layers: "Layers" = None
    ) -> AfterStep:
        from cbp_ray.algorithm.weights import WeightReinitialization

        return WeightReinitialization(model, optimizer, self.rate, self.every, self.utility, self.decay_rate, _one(seed))

    def never_acted(self, replacements: float, updates: float, units: int) -> str | None:
        if replacements or self.rate == 0:
            return None
        why = f"every = {self.every:,} and rate = {self.rate:g} in {updates:,.0f} steps"
        return f"{self.label} never drew a weight anew: {why}; lower the one, raise the other, or run longer"

    def kernel(self) -> dict[str, Any]:
        if not self.rate:
            return {}
        shares = {"reinitialized": self.rate, "every": self.every, "trace_decay": self.decay_rate}
        return {"rule": f"swr_{self.utility}", **shares}
