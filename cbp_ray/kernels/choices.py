"""What both kernels are told: choices for which they are compiled, numbers for each run, and constants of the experiments."""

from enum import IntEnum
from typing import NamedTuple

from cbp_ray.activations import NORM_EPSILON
from cbp_ray.presets import NEEDS


class Utility(IntEnum):
    """Codes of the utilities."""

    RANDOM = 0
    WEIGHT_MAGNITUDE = 1
    CONTRIBUTION = 2
    MEAN_CORRECTED_CONTRIBUTION = 3
    ADAPTATION = 4
    OVERALL = 5


NEEDS_INCOMING = tuple(int(Utility[name.upper()]) for name, needs in NEEDS.items() if needs.magnitude_in)
"""Codes of the utilities in which Σ|w_in| has a part."""

NEEDS_OUTGOING = tuple(int(Utility[name.upper()]) for name, needs in NEEDS.items() if needs.magnitude_out)
"""Codes of the utilities in which Σ|w_out| has a part."""


class Rule(IntEnum):
    """Codes of the methods that act on single weights; see `cbp_ray.algorithm.weights`."""

    NONE = 0
    L2_INIT = 1
    PERTURB = 2
    PERTURB_GRADIENT = 3
    PERTURB_INITIAL = 4
    CLIP = 5
    UPGD = 6
    UPGD_UNPROTECTED = 7
    SWR_GRADIENT = 8
    SWR_MAGNITUDE = 9
    SWR_RANDOM = 10


UPGDS = (int(Rule.UPGD), int(Rule.UPGD_UNPROTECTED))
PERTURBS = (int(Rule.PERTURB), int(Rule.PERTURB_GRADIENT), int(Rule.PERTURB_INITIAL), *UPGDS)
"""Rules that need noise."""
REINITIALIZES = (int(Rule.SWR_GRADIENT), int(Rule.SWR_MAGNITUDE), int(Rule.SWR_RANDOM))
FOLLOWS = (*UPGDS, int(Rule.SWR_GRADIENT), int(Rule.SWR_MAGNITUDE))
"""Rules that keep a trace of every weight's utility."""


class Tester(IntEnum):
    """Codes of the ways to find the units that are replaced; see `cbp_ray.algorithm.unit_resets`."""

    UTILITY = 0
    ACTIVITY = 1
    SILENCE = 2


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
    affine: bool = True
    """OnlineNorm has a learned scale and bias."""
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
    tester: int = int(Tester.UTILITY)
    """Code of the `Tester`."""
    rule: int = int(Rule.NONE)
    """Code of the `Rule`."""
    layer_norm: bool = False
    """Layer normalisation stands between the input weights and the activation."""
    input_norm: bool = False
    """Inputs are normalised by their running mean and variance."""
    plasticity: bool = False
    """After every step the example is shown once more, for the sample plasticity."""


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
    bound_out: float = 0.0
    """The same for output weights."""
    every: int = 1
    """Steps from one look to the next, of ReDo and of selective weight reinitialisation."""
    threshold: float = 0.0
    """ReDo's τ; the probability at which a silence is no chance, of self-normalised resets."""
    strength: float = 0.0
    """λ of L2-Init."""
    noise: float = 0.0
    """σ."""
    shrinkage: float = 0.0
    """Part of a weight that is lost in every step, of one form of shrink and perturb."""
    clip: float = 0.0
    clip_out: float = 0.0
    """κ of the weights into units and into the output."""
    input_decay: float = 0.0
    """Of the averages by which inputs are normalised."""
    trace_decay: float = 0.0
    """β of the traces of weights' utilities."""
    reinitialized: float = 0.0
    """Share of a parameter's weights that is drawn anew each time."""
