"""What a block of learners is: compile-time choices, run-time numbers, and the arrays that hold `WIDTH` runs."""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbp_ray.kernels.lanes import WIDTH, aligned_zeros

Array = np.ndarray[Any, Any]


class Utility(IntEnum):
    """Codes for the kernels."""

    RANDOM = 0
    WEIGHT_MAGNITUDE = 1
    CONTRIBUTION = 2
    MEAN_CORRECTED_CONTRIBUTION = 3
    ADAPTATION = 4
    OVERALL = 5


class Choices(NamedTuple):
    """What a kernel is compiled for. As constants they cost nothing: the compiler removes every branch on them."""

    activation: int
    adam: bool
    decays: bool
    """Weight decay is not zero."""
    normalized: bool
    """OnlineNorm between the input weights and the activation."""
    hidden: bool
    """False for the linear tracker: one unit, whose output is the prediction."""
    replaces: bool
    """Generate-and-test runs."""
    utility: int
    lagged: bool
    """f̂ and û from the averages before this step (preset `paper`), not after it."""
    mean_magnitudes: bool
    rate_of_eligible: bool
    transfers_bias: bool
    bernoulli: bool


class Numbers(NamedTuple):
    """The settings that vary without a new compilation."""

    step_size: float
    weight_decay: float
    beta_1: float
    beta_2: float
    epsilon: float
    alpha_forward: float
    alpha_backward: float
    norm_epsilon: float
    replacement_rate: float
    maturity_threshold: float
    decay_rate: float
    bound: float
    """New input weights come from U(-bound, bound)."""


class State(NamedTuple):
    """Everything that a block of runs remembers. Every array is `[rows, WIDTH]`; n units, m inputs.

    `parameters`, `first` and `second` share their rows: unit i owns rows i·(m+4) … i·(m+4) + m+3, which are its m input
    weights, its bias, its output weight, and OnlineNorm's scale and bias; the last row is the output bias. A unit's rows are
    born and reset together, so they share one Adam time step: that is all that "per-weight" time steps need here.
    """

    parameters: Array
    first: Array
    second: Array
    """Adam's moments (one row if there is no Adam)."""
    correction_1: Array
    correction_2: Array
    """1 - β₁ᵗ and 1 - β₂ᵗ of each unit's t, and in row n of the output bias's t."""
    mean: Array
    variance: Array
    control_u: Array
    control_v: Array
    """OnlineNorm, per unit."""
    utility: Array
    activation: Array
    correction: Array
    """1 - ηᵃ of each unit."""
    age: Array
    """As a float; from 2**24 on float32 no longer counts, which no comparison with the maturity threshold notices."""
    exposure: Array
    replaced: Array
    steps: Array
    """float64, one row each: integers that stay exact up to 2**53."""
    seed: Array
    """uint64, one row."""
    totals: Array
    """float64, see `Total`: sums over the current bin."""
    largest: Array
    """Largest |h| of each unit in the current bin."""


class Total(IntEnum):
    """Rows of `State.totals`."""

    SQUARED_ERROR = 0
    SATURATED = 1
    INPUT_GRADIENT = 2
    REPLACED = 3
    NONFINITE = 4


class Scratch(NamedTuple):
    """Values that live within one step."""

    x: Array
    """Inputs, [m, WIDTH]; rows of flipping bits are set from outside, the others by the kernel."""
    h: Array
    derivative: Array
    normalized: Array
    sigma: Array
    utility_before: Array
    due: Array
    """float64, one row."""


class Shape(NamedTuple):
    """Sizes of the network."""

    units: int
    inputs: int

    @property
    def unit_rows(self) -> int:
        """Rows that one unit owns."""
        return self.inputs + 4

    @property
    def rows(self) -> int:
        """Rows of all parameters."""
        return self.units * self.unit_rows + 1


def new_state(choices: Choices, shape: Shape, dtype: Any, seeds: NDArray[np.uint64]) -> State:
    """A block before its first example, with all weights zero: `parameters` is for the caller to fill."""
    n = shape.units
    moments = shape.rows if choices.adam else 1
    state = State(
        parameters=aligned_zeros(shape.rows, dtype),
        first=aligned_zeros(moments, dtype),
        second=aligned_zeros(moments, dtype),
        correction_1=aligned_zeros(n + 1, dtype),
        correction_2=aligned_zeros(n + 1, dtype),
        mean=aligned_zeros(n, dtype),
        variance=aligned_zeros(n, dtype),
        control_u=aligned_zeros(n, dtype),
        control_v=aligned_zeros(n, dtype),
        utility=aligned_zeros(n, dtype),
        activation=aligned_zeros(n, dtype),
        correction=aligned_zeros(n, dtype),
        age=aligned_zeros(n, dtype),
        exposure=aligned_zeros(1, np.float64),
        replaced=aligned_zeros(1, np.float64),
        steps=aligned_zeros(1, np.float64),
        seed=aligned_zeros(1, np.uint64),
        totals=aligned_zeros(len(Total), np.float64),
        largest=aligned_zeros(n, dtype),
    )
    state.variance[...] = 1
    state.seed[0] = seeds
    for i in range(n):
        state.parameters[i * shape.unit_rows + shape.inputs + 2] = 1
    return state


def new_scratch(shape: Shape, dtype: Any) -> Scratch:
    """Working memory for a block."""
    n = shape.units
    return Scratch(
        x=aligned_zeros(shape.inputs, dtype),
        h=aligned_zeros(n, dtype),
        derivative=aligned_zeros(n, dtype),
        normalized=aligned_zeros(n, dtype),
        sigma=aligned_zeros(n, dtype),
        utility_before=aligned_zeros(n, dtype),
        due=aligned_zeros(1, np.float64),
    )


def unit_parameters(parameters: Array, shape: Shape) -> Array:
    """View of the units' rows as [units, unit_rows, WIDTH]."""
    return parameters[:-1].reshape(shape.units, shape.unit_rows, WIDTH)
