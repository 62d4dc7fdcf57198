"""The arrays that hold a block of `WIDTH` runs, and which row of them is what."""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from cbp_ray.kernels.choices import FOLLOWS, PERTURBS, Choices, Rule
from cbp_ray.kernels.lanes import WIDTH, aligned_zeros
from cbp_ray.randomness import noise_seed

Array = np.ndarray[Any, Any]


class UnitRows(NamedTuple):
    """Rows of the parameters that belong to one unit."""

    weights: int
    """First of the m input weights."""
    bias: int
    out: int
    """The weight from the unit to the output."""
    gain: int
    shift: int
    """OnlineNorm's learned scale and bias."""
    end: int
    """First row that is no longer the unit's."""


@register_jitable(forceinline=True)
def unit_rows(i: int, inputs: int) -> UnitRows:
    """Rows of unit i in a network with `inputs` inputs; for Python and for the kernel."""
    own = inputs + 4
    bias = i * own + inputs
    return UnitRows(i * own, bias, bias + 1, bias + 2, bias + 3, (i + 1) * own)


@register_jitable(forceinline=True)
def output_bias_row(units: int, inputs: int) -> Any:
    """The row behind those of all units, which is the last."""
    return unit_rows(units, inputs).weights


class State(NamedTuple):
    """Everything that a block of runs remembers. Every array is `[rows, WIDTH]`; n units, m inputs.

    `parameters`, `first` and `second` share their rows: each unit owns those of `unit_rows`, and the last row is the output
    bias. A unit's rows are born and reset together, so they share one Adam time step: that is all that "per-weight" time
    steps need here.
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
    """OnlineNorm's statistics, per unit."""
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
    initial: Array
    """The first parameters, for L2-Init (one row without it)."""
    trace: Array
    """Traces of the utilities of all parameters (one row if the method has none)."""
    silence: Array
    firing: Array
    """Of self-normalised resets: examples since each unit fired, and how often it had fired by then; 0 if never."""
    noise_seed: Array
    """uint32, two rows."""
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
    PLASTICITY = 5


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
    """Units to replace in this step: float64, one row."""
    u_hat: Array
    """û of the units of one lane: float64 [n]."""
    delta: Array
    """δ of each unit, where all are needed before the first weight changes."""
    by_norm: Array
    """The gradient by the output of each unit's layer normalisation."""
    keys: Array
    """Keys of the step's noise: uint32, two rows."""
    noise: Array
    """Noise of one unit's own parameters, then of all output weights, and of the output bias."""
    usefulness: Array
    """What UPGD multiplies traces by: one row."""
    clipped: Array
    """Weights clipped since the beginning of the call: one row."""
    ranks: Array
    """Utilities of one parameter of one lane: float64 [n·m]."""


class Shape(NamedTuple):
    """Sizes of the network."""

    units: int
    inputs: int


def new_state(choices: Choices, shape: Shape, dtype: Any, seeds: NDArray[np.uint64]) -> State:
    """Makes a block before its first example, with all weights zero: `parameters` is for the caller to fill."""
    n, m = shape
    rows = output_bias_row(n, m) + 1
    moments = rows if choices.adam else 1
    per_unit = {name: aligned_zeros(n, dtype) for name in State._fields}
    state = State(
        **per_unit
        | {
            "parameters": aligned_zeros(rows, dtype),
            "first": aligned_zeros(moments, dtype),
            "second": aligned_zeros(moments, dtype),
            "correction_1": aligned_zeros(n + 1, dtype),
            "correction_2": aligned_zeros(n + 1, dtype),
            "exposure": aligned_zeros(1, np.float64),
            "replaced": aligned_zeros(1, np.float64),
            "steps": aligned_zeros(1, np.float64),
            "seed": aligned_zeros(1, np.uint64),
            "initial": aligned_zeros(rows if choices.rule == Rule.L2_INIT else 1, dtype),
            "trace": aligned_zeros(rows if choices.rule in FOLLOWS else 1, dtype),
            "noise_seed": aligned_zeros(2, np.uint32),
            "totals": aligned_zeros(len(Total), np.float64),
        }
    )
    state.variance[...] = 1
    state.seed[0] = seeds
    if choices.rule in PERTURBS:
        state.noise_seed[...] = np.array([noise_seed(int(seed)) for seed in seeds], dtype=np.uint32).T
    unit_parameters(state.parameters, shape)[:, unit_rows(0, m).gain] = 1
    return state


def new_scratch(shape: Shape, dtype: Any) -> Scratch:
    """Makes the working memory of a block."""
    per_unit = {name: aligned_zeros(shape.units, dtype) for name in Scratch._fields}
    others = {
        "x": aligned_zeros(shape.inputs, dtype),
        "due": aligned_zeros(1, np.float64),
        "u_hat": np.zeros(shape.units),
        "keys": aligned_zeros(2, np.uint32),
        "noise": aligned_zeros(shape.inputs + shape.units + 8, dtype),
        "usefulness": aligned_zeros(1, dtype),
        "clipped": aligned_zeros(1, dtype),
        "ranks": np.zeros(shape.units * shape.inputs),
    }
    return Scratch(**per_unit | others)


def unit_parameters(parameters: Array, shape: Shape) -> Array:
    """View of the units' rows as [units, rows of a unit, WIDTH]; `unit_rows(0, inputs)` says what each row is."""
    return parameters[:-1].reshape(shape.units, -1, WIDTH)
