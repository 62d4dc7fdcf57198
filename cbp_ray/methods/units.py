"""Rivals of Continual Backprop that reset units by another rule; `cbp_ray.algorithm.unit_resets` has their equations."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cbp_ray.methods.method import COLOURS, AfterStep, Method
from cbp_ray.presets import DEFAULTS
from cbp_ray.validation import Count, DecayRate, Maturity, NotNegative

if TYPE_CHECKING:
    from torch import nn

    from cbp_ray.methods.method import Layers, Optimizers


class ReDo(Method):
    """ReDo (Sokar et al. 2023), with running averages of the activity."""

    label = "ReDo"
    ppo_label = "PPO+ReDo"
    swept = "threshold"
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["black"], "marker": "h"}

    name: Literal["redo"] = "redo"
    """Name of the method in configs."""
    threshold: NotNegative
    """τ: units whose average output is at most this part of their layer's mean are dormant."""
    every: Count = 1000
    """Steps from one look to the next."""
    decay_rate: DecayRate = DEFAULTS.decay_rate
    """η of the running average."""
    weight_decay: NotNegative = 0.0
    """λ: the gradient becomes g + λ w."""

    def after_step(
        self, model: "nn.Module", optimizer: "Optimizers", seed: int | Sequence[int], layers: "Layers" = None
    ) -> AfterStep:
        from cbp_ray.algorithm.unit_resets import ReDo

        assert isinstance(seed, int)  # it does not take networks in a stack
        return ReDo(model, optimizer, self.threshold, self.every, self.decay_rate, seed, layers=layers)

    def never_acted(self, replacements: float, updates: float, units: int) -> str | None:
        if replacements or updates >= self.every:
            return None  # a network without dormant units needs no help
        return f"{self.label} never looked: every = {self.every:,} is longer than {updates:,.0f} steps; lower it or run longer"

    def rllib(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name", "weight_decay"})

    def kernel(self) -> dict[str, Any]:
        shares = {"threshold": self.threshold, "every": self.every, "decay_rate": self.decay_rate}
        return {"replaces": True, "tester": "activity", **shares}


class SelfNormalizedResets(Method):
    """Self-normalised resets (Farias and Jozefiak 2024), in a geometric form; for activations that fall silent, as ReLU."""

    label = "SNR-geometric"
    ppo_label = "PPO+SNR-geometric"
    swept = "rejection"
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["grey"], "marker": "p"}

    name: Literal["snr_geometric"] = "snr_geometric"
    """Name of the method in configs."""
    rejection: DecayRate
    """η, the probability below which a unit's silence is no chance."""
    maturity_threshold: Maturity = DEFAULTS.maturity_threshold
    """Units are safe until they are older than this many steps."""
    decay_rate: DecayRate = 0.999
    """Decay of the running average of firing."""
    weight_decay: NotNegative = 0.0
    """λ: the gradient becomes g + λ w."""

    def after_step(
        self, model: "nn.Module", optimizer: "Optimizers", seed: int | Sequence[int], layers: "Layers" = None
    ) -> AfterStep:
        from cbp_ray.algorithm.unit_resets import SelfNormalizedResets

        assert isinstance(seed, int)  # it does not take networks in a stack
        settings = self.rejection, self.maturity_threshold, self.decay_rate
        return SelfNormalizedResets(model, optimizer, *settings, seed, layers=layers)

    def never_acted(self, replacements: float, updates: float, units: int) -> str | None:
        if replacements or self.rejection == 0 or updates > self.maturity_threshold:
            return None  # a network without silent units needs no help
        why = f"no unit got older than maturity_threshold = {self.maturity_threshold} in {updates:,.0f} steps"
        return f"{self.label} never replaced a unit: {why}; lower it or run longer"

    def rllib(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name", "weight_decay"})

    def kernel(self) -> dict[str, Any]:
        if not self.rejection:
            return {}
        shares = {"threshold": self.rejection, "decay_rate": self.decay_rate}
        return {"replaces": True, "tester": "silence", "maturity_threshold": float(self.maturity_threshold), **shares}
