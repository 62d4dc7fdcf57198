"""The variants of generate-and-test by name: utilities, presets and defaults. Without torch: every engine reads them."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Utility = Literal["random", "weight_magnitude", "contribution", "mean_corrected_contribution", "adaptation", "overall"]


class Needs(NamedTuple):
    """What a utility is computed from; nothing else is measured."""

    absolute: bool = False
    """|h| of every unit."""
    deviation: bool = False
    """|h - f̂| of every unit."""
    fired: bool = False
    """In which share of the examples h > 0."""
    magnitude_out: bool = False
    """Σ|w| over the weights out of every unit."""
    magnitude_in: bool = False
    """Σ|w| over the weights into every unit."""


NEEDS: dict[Utility, Needs] = {
    "random": Needs(),
    "weight_magnitude": Needs(magnitude_out=True),
    "contribution": Needs(absolute=True, magnitude_out=True),
    "mean_corrected_contribution": Needs(deviation=True, magnitude_out=True),
    "adaptation": Needs(magnitude_in=True),
    "overall": Needs(deviation=True, magnitude_out=True, magnitude_in=True),
}


@dataclass(frozen=True)
class Preset:
    """The choices in which the paper and its successor differ."""

    lagged: bool
    """f̂ and û are made from the averages *before* this step's update (equations 3 and 7) instead of after it."""
    mean_magnitudes: bool
    """Means of |w| over a unit's connections instead of sums."""
    rate_of_eligible: bool
    """ρ times the number of eligible units are replaced per step, instead of ρ times all units."""
    transfers_bias: bool
    """A removed unit's mean contribution is moved into the biases that it fed."""
    utility: Utility
    """The utility that is used when none is named."""


PRESETS = {
    "paper": Preset(lagged=True, mean_magnitudes=False, rate_of_eligible=False, transfers_bias=False, utility="overall"),
    "nature2024": Preset(
        lagged=False, mean_magnitudes=True, rate_of_eligible=True, transfers_bias=True, utility="contribution"
    ),
}


@dataclass(frozen=True)
class Defaults:
    """Default settings of generate-and-test, wherever it is configured. The default utility is the preset's."""

    replacement_rate: float = 1e-4
    """ρ, the fraction of a layer's units replaced per step."""
    maturity_threshold: int = 100
    """m; only units older than m steps may be replaced."""
    decay_rate: float = 0.99
    """η of the running averages."""
    preset: Literal["paper", "nature2024"] = "paper"
    """A name in `PRESETS`."""
    replacement: Literal["accumulate", "bernoulli"] = "accumulate"
    """What becomes of the fraction of n·ρ: carried from step to step, or rounded at random."""


DEFAULTS = Defaults()
