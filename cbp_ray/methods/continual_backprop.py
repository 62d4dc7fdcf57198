"""Continual Backprop (Algorithms 1 to 3 of the paper) as a method of experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from cbp_ray.methods.method import COLOURS, AfterStep, Method
from cbp_ray.presets import DEFAULTS, PRESETS, Utility
from cbp_ray.validation import DecayRate, Maturity, NotNegative, Rate

if TYPE_CHECKING:
    from torch import nn

    from cbp_ray.methods.method import Layers, Optimizers


class ContinualBackprop(Method):
    """Continual Backprop (Algorithms 1 and 2)."""

    label = "CBP"
    ppo_label = "Continual PPO"
    swept = "replacement_rate"
    stacks = True
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["blue"], "marker": "o"}

    name: Literal["cbp"] = "cbp"
    """Name of the method in configs."""
    replacement_rate: Rate
    """ρ, fraction of a layer's units replaced per example."""
    maturity_threshold: Maturity = DEFAULTS.maturity_threshold
    """m: units are safe until they are older than this many examples."""
    decay_rate: DecayRate = DEFAULTS.decay_rate
    """η of the running averages."""
    utility: Utility | None = None
    """Which utility decides. Unset: the preset's own, `overall` for `paper` and `contribution` for `nature2024`."""
    preset: Literal["paper", "nature2024"] = DEFAULTS.preset
    """Which paper's details."""
    replacement: Literal["accumulate", "bernoulli"] = DEFAULTS.replacement
    """What becomes of the fraction of n·ρ: carried from example to example, or rounded at random."""
    weight_decay: NotNegative = 0.0
    """λ: the gradient becomes g + λ w."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_utility(cls, data: Any) -> Any:
        # Resolved here, so that the config that is saved names the utility.
        if isinstance(data, Mapping) and data.get("utility") is None:
            preset = PRESETS.get(str(data.get("preset", DEFAULTS.preset)))
            return {**data, "utility": preset and preset.utility}
        return data

    def never_acted(self, replacements: float, updates: float, units: int) -> str | None:
        if replacements or self.replacement_rate == 0:
            return None
        if updates <= self.maturity_threshold:
            why = f"no unit got older than maturity_threshold = {self.maturity_threshold} in {updates:,.0f} steps"
            return f"{self.label} never replaced a unit: {why}; lower it or run longer"
        expected = self.replacement_rate * units * (updates - self.maturity_threshold)
        why = f"replacement_rate = {self.replacement_rate:g} makes {expected:.2g} of a layer of {units} in {updates:,.0f} steps"
        return f"{self.label} never replaced a unit: {why}; raise it or run longer"

    def rllib(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name", "weight_decay"})

    def after_step(
        self, model: "nn.Module", optimizer: "Optimizers", seed: int | Sequence[int], layers: "Layers" = None
    ) -> AfterStep:
        from cbp_ray.algorithm import GenerateAndTest

        return GenerateAndTest(model, optimizer, **self.rllib(), seed=seed, layers=layers, compiled=False)

    def kernel(self) -> dict[str, Any]:
        return {
            "replaces": True,
            **asdict(PRESETS[self.preset]),
            "utility": self.utility,
            "bernoulli": self.replacement == "bernoulli",
            "replacement_rate": self.replacement_rate,
            "maturity_threshold": float(self.maturity_threshold),
            "decay_rate": self.decay_rate,
        }
