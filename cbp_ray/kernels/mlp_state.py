"""What one deep network is to the kernel: flat arrays, and where each layer is in them.

Level 0 is the input and level k the output of weight layer k - 1; the last level is the network's output. Every level owns
`padded(size)` places in each array "by unit", from `Layout.unit[k]` on. Weight layer l is a matrix [inputs, outputs], row by
row, so that an input that is 0 skips a row; its rows are padded to whole vectors, and one spare row of zeros behind the last
stands in where four rows are taken at a time and fewer are left.
"""

from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbp_ray.kernels.choices import FOLLOWS, REINITIALIZES, Choices, Rule
from cbp_ray.kernels.lanes import aligned_flat
from cbp_ray.kernels.noise import groups_of
from cbp_ray.kernels.vectors import VECTOR, padded
from cbp_ray.randomness import noise_seed

Array = np.ndarray[Any, Any]
ROWS = 4
"""Number of rows that are taken at a time."""


class Layout(NamedTuple):
    """Where each level and layer is in the arrays; all int64."""

    size: Array
    """[levels]: number of units."""
    unit: Array
    """[levels + 1]: first place in an array by unit."""
    weight: Array
    """[layers + 1]: first place in `weights`."""
    stride: Array
    """[layers]: places per row."""
    first_active: Array
    """[levels]: first place in `Scratch.active` and `active_outputs`."""
    part: Array
    """[layers]: number of the weights among torch's parameters; their biases come next, and then the norm's scale and bias."""
    number: Array
    """[layers]: number of the first weight in torch."""
    group: Array
    """[layers]: number of the first group of weights that share a hash; see `cbp_ray.algorithm.weights.noise`."""


class State(NamedTuple):
    """Everything that a run remembers. Flat arrays, see the module's docstring; "unit" means by unit."""

    weights: Array
    """The weights divided by their layer's `scale`; of L2-Init with SGD, their distances from `initial` divided by it."""
    scale: Array
    """[layers] float64: with SGD, weight decay and L2-Init shrink this number instead of every weight."""
    first: Array
    second: Array
    """Adam's moments of the weights (one place if there is no Adam)."""
    bias: Array
    bias_first: Array
    bias_second: Array
    """Unit: biases and Adam's moments of them."""
    correction_1: Array
    correction_2: Array
    """Unit: 1 - β₁ᵗ and 1 - β₂ᵗ. A weight's time step is the smaller of those of the two units that it connects."""
    mean: Array
    variance: Array
    control_u: Array
    control_v: Array
    gain: Array
    gain_first: Array
    gain_second: Array
    shift: Array
    shift_first: Array
    shift_second: Array
    """Unit: OnlineNorm's statistics, and its learned scale and bias."""
    utility: Array
    activation: Array
    correction: Array
    """Unit: u, f and 1 - ηᵃ."""
    birth: Array
    """Unit, int64: the step in which it was made."""
    incoming: Array
    outgoing: Array
    """Unit: Σ|w| into and out of it, divided by the layer's `scale`."""
    initial: Array
    """The first weights, for L2-Init (one place without it)."""
    trace: Array
    """Traces of the utilities of the weights (one place if the method has none); of UPGD, divided by `trace_scale`."""
    trace_scale: Array
    """float64 [1]."""
    row_best: Array
    row_size: Array
    """Unit, of UPGD: the largest trace of the weights from it, and at least 0; and the largest absolute value of one."""
    bias_trace: Array
    gain_trace: Array
    shift_trace: Array
    """Unit: the same of the parameters by unit."""
    silence: Array
    firing: Array
    """Unit: of self-normalised resets, examples since a unit fired, and how often it had fired by then; 0 if never."""
    noise_seed: Array
    """uint32 [2]."""
    exposure: Array
    replaced: Array
    oldest_birth: Array
    """[levels] int64: units × steps while some unit was eligible, units replaced, and the earliest `birth`."""
    steps: Array
    """[1] int64: steps of generate-and-test."""
    seed: Array
    """Key of the run's random numbers, one uint64."""
    totals: Array
    """float64, see `Total`: sums over the current bin."""


class Total(IntEnum):
    """Places of `State.totals`."""

    RIGHT = 0
    LOSS = 1
    REPLACED = 2
    NONFINITE = 3
    PLASTICITY = 4


class Scratch(NamedTuple):
    """Values that live within one step."""

    h: Array
    derivative: Array
    delta: Array
    normalized: Array
    sigma: Array
    inverse_1: Array
    inverse_2: Array
    """Unit: the last two are Adam's α / (1 - β₁ᵗ) and 1 / (1 - β₂ᵗ)."""
    active: Array
    """int64: for each level, the units whose output is not 0, filled up with the spare row to a multiple of `ROWS`."""
    active_outputs: Array
    """Outputs of these units."""
    active_count: Array
    """[levels] int64: number of these units, with the filling."""
    by_norm: Array
    """Unit: the gradient by the output of layer normalisation."""
    columns: Array
    """Unit: 1, and 0 where a level is filled up."""
    keys: Array
    """Keys of the step's noise: uint32 [2]."""
    usefulness: Array
    """What UPGD multiplies traces by: float64 [1]."""
    ranks: Array
    sorted: Array
    """float64: utilities of the weights of one layer, for selective weight reinitialisation."""
    u_hat: Array
    """Unit, float64: û where it is needed."""
    draws: Array
    """float64: uniform numbers for new weights."""


def make_layout(sizes: Sequence[int], layer_norm: bool = False) -> Layout:
    """Lays out a network with these sizes, from input to output."""
    norms = [2 * layer_norm * n for n in sizes[1:-1]] + [0]
    weights = [n * fan_in + n + norm for fan_in, n, norm in zip(sizes, sizes[1:], norms, strict=False)]
    groups = [n * groups_of(fan_in) + n + norm for fan_in, n, norm in zip(sizes, sizes[1:], norms, strict=False)]
    strides = [padded(n) for n in sizes[1:]]
    areas = [(rows + 1) * stride for rows, stride in zip(sizes, strides, strict=False)]

    def starts(lengths: Sequence[int]) -> Array:
        return np.array([0, *accumulate(lengths)], dtype=np.int64)

    return Layout(
        size=np.array(sizes, dtype=np.int64),
        unit=starts([padded(n) for n in sizes]),
        weight=starts(areas),
        stride=np.array(strides, dtype=np.int64),
        first_active=starts([n + ROWS for n in sizes]),
        part=np.arange(len(weights), dtype=np.int64) * (4 if layer_norm else 2),
        number=starts(weights)[:-1],
        group=starts(groups)[:-1],
    )


def new_state(layout: Layout, dtype: Any, seed: int, choices: Choices) -> State:
    """Makes a run before its first example, with all weights zero: `weights` is for the caller to fill."""
    units, levels = int(layout.unit[-1]), len(layout.size)
    by_unit = {name: aligned_flat(units, dtype) for name in State._fields}
    weights = int(layout.weight[-1])
    moments = weights if choices.adam else VECTOR
    state = State(
        **by_unit
        | {
            "weights": aligned_flat(weights, dtype),
            "scale": np.ones(levels - 1),
            "first": aligned_flat(moments, dtype),
            "second": aligned_flat(moments, dtype),
            "initial": aligned_flat(weights if choices.rule == Rule.L2_INIT else VECTOR, dtype),
            "trace": aligned_flat(weights if choices.rule in FOLLOWS else VECTOR, dtype),
            "trace_scale": np.ones(1),
            "noise_seed": np.array(noise_seed(seed), dtype=np.uint32),
            "birth": np.zeros(units, dtype=np.int64),
            "exposure": np.zeros(levels, dtype=np.int64),
            "replaced": np.zeros(levels, dtype=np.int64),
            "oldest_birth": np.zeros(levels, dtype=np.int64),
            "steps": np.zeros(1, dtype=np.int64),
            "seed": np.array([seed], dtype=np.uint64),
            "totals": np.zeros(len(Total)),
        }
    )
    state.variance[...] = 1
    state.gain[...] = 1
    return state


def new_scratch(layout: Layout, dtype: Any, choices: Choices) -> Scratch:
    """Makes the working memory of a run."""
    units, levels = int(layout.unit[-1]), len(layout.size)
    by_unit = {name: aligned_flat(units, dtype) for name in Scratch._fields}
    ranked = int((layout.size[:-1] * layout.size[1:]).max()) if choices.rule in REINITIALIZES else 1
    scratch = Scratch(
        **by_unit
        | {
            "active": np.zeros(int(layout.first_active[-1]), dtype=np.int64),
            "active_outputs": np.zeros(int(layout.first_active[-1]), dtype=dtype),
            "active_count": np.zeros(levels, dtype=np.int64),
            "u_hat": np.zeros(units),
            "draws": np.zeros(int(layout.size.max()) + 4),
            "keys": np.zeros(2, dtype=np.uint32),
            "usefulness": np.zeros(1),
            "ranks": np.zeros(ranked),
            "sorted": np.zeros(ranked),
        }
    )
    for level in range(levels):
        of_level(scratch.columns, layout, level)[...] = 1
    return scratch


def matrix(flat: Array, layout: Layout, layer: int) -> Array:
    """View of a weight layer as [inputs, outputs]."""
    rows, columns = int(layout.size[layer]), int(layout.size[layer + 1])
    start, stride = int(layout.weight[layer]), int(layout.stride[layer])
    return flat[start : start + rows * stride].reshape(rows, stride)[:, :columns]


def of_level(flat: Array, layout: Layout, level: int) -> Array:
    """View of the places of one level in an array by unit."""
    start = int(layout.unit[level])
    return flat[start : start + int(layout.size[level])]


class Stream(NamedTuple):
    """A data set for the kernel: only pixels that are not 0, or all."""

    start: NDArray[np.int64]
    """[images + 1]: where each image's pixels begin."""
    pixel: NDArray[np.int16]
    value: NDArray[np.uint8]
    label: NDArray[np.uint8]


def make_stream(images: NDArray[np.uint8], labels: NDArray[np.uint8], dense: bool = False) -> Stream:
    """Makes a stream from images [n, pixels]; `dense` has all pixels, for inputs whose black is not 0."""
    if dense:
        count, pixels = images.shape
        start = np.arange(count + 1, dtype=np.int64) * pixels
        return Stream(start, np.tile(np.arange(pixels, dtype=np.int16), count), images.ravel(), labels)
    rows, pixels = np.nonzero(images)
    start = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(images)))]).astype(np.int64)
    return Stream(start, pixels.astype(np.int16), images[rows, pixels], labels)
