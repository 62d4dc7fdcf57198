"""What both kernels are told: choices for which they are compiled, numbers for each run, and constants of the experiments."""

from enum import IntEnum
from typing import NamedTuple

LEAKY_SLOPE = 0.01
"""Slope of the leaky ReLU below zero."""

NORM_EPSILON = 1e-5
"""OnlineNorm's ε, added to the variance."""

SATURATION = 0.9
"""A unit counts as saturated while |h| is larger."""


class Utility(IntEnum):
    """Codes of the utilities."""

    RANDOM = 0
    WEIGHT_MAGNITUDE = 1
    CONTRIBUTION = 2
    MEAN_CORRECTED_CONTRIBUTION = 3
    ADAPTATION = 4
    OVERALL = 5


NEEDS_INCOMING = (Utility.ADAPTATION, Utility.OVERALL)
"""Utilities in which Σ|w_in| has a part."""

NEEDS_OUTGOING = (
    Utility.WEIGHT_MAGNITUDE,
    Utility.CONTRIBUTION,
    Utility.MEAN_CORRECTED_CONTRIBUTION,
    Utility.OVERALL,
)
"""Utilities in which Σ|w_out| has a part."""


class Choices(NamedTuple):
    """What a kernel is compiled for. As constants they cost nothing: the compiler removes every branch on them.

    Values are plain integers and booleans, because a kernel that takes them as an argument is compiled for their types.
    """

    activation: int
    """Code of `cbp_ray.kernels.activations.Activation`."""
    adam: bool = False
    """Adam is the optimizer instead of SGD."""
    decays: bool = False
    """Weight decay is not zero."""
    normalized: bool = False
    """OnlineNorm stands between the input weights and the activation."""
    hidden: bool = True
    """False for the linear tracker: one unit, whose output is the prediction."""
    replaces: bool = False
    """Generate-and-test runs."""
    utility: int = int(Utility.OVERALL)
    """Code of the `Utility`."""
    lagged: bool = True
    """f̂ and û come from the averages before this step (preset `paper`), not after it."""
    mean_magnitudes: bool = False
    """Utilities use means of weight magnitudes instead of sums."""
    rate_of_eligible: bool = False
    """The replacement rate is a share of the eligible units instead of all units."""
    transfers_bias: bool = False
    """A removed unit's mean contribution moves into the biases of the next layer."""
    bernoulli: bool = False
    """The fraction of a unit that is due is drawn in every step instead of carried to the next one."""


NO_CHOICES = Choices(activation=0)
"""Stands in where a kernel takes its choices at run time: it has the right type and is never read."""


class Numbers(NamedTuple):
    """The settings that vary without a new compilation; 0 where the method does not use them."""

    step_size: float
    weight_decay: float = 0.0
    beta_1: float = 0.0
    beta_2: float = 0.0
    epsilon: float = 0.0
    alpha_forward: float = 0.0
    alpha_backward: float = 0.0
    norm_epsilon: float = NORM_EPSILON
    replacement_rate: float = 0.0
    maturity_threshold: float = 0.0
    decay_rate: float = 0.0
    bound: float = 0.0
    """New input weights come from U(-bound, bound)."""
