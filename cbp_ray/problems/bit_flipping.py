"""Bit-Flipping (section 2 of the paper): a target network of threshold units, and inputs whose distribution keeps changing."""

from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from cbp_ray.errors import InputError
from cbp_ray.problems.problem import COUNTS, DIAGNOSTICS, RANKS, Problem
from cbp_ray.randomness import Purpose, words
from cbp_ray.validation import SEEDS, Count, CountFromZero, Rate, SectionError, make, whole_number

TABLE_BITS = 12
"""Up to this many i.i.d. bits, the targets between two flips come from a table of all their patterns."""

PROBE_BITS = 10
"""Up to this many i.i.d. bits, a probe has all their patterns."""

MOST_TARGET_WEIGHTS = 10**8
"""Most weights of a target network."""

EVALUATED_AT_ONCE = 1 << 14
"""Examples per call of the target network: bounds the memory of `take`."""


class BitFlippingConfig(Problem):
    """The settings of Bit-Flipping; the defaults are the paper's."""

    label = "Bit-Flipping"
    defaults: ClassVar[dict[str, Any]] = {
        "network": {"hidden": (5,), "activation": "tanh"},
        "examples": 1_000_000,
        "bin_size": 20_000,
    }
    metrics: ClassVar[dict[str, str]] = {
        "error": "mean of (y - ŷ)² over the bin, each prediction made before the update",
        "input_weight_magnitude": "mean |w| of the input layer at the bin's end",
        "output_weight_magnitude": "mean |w| of the output layer at the bin's end; not a number without hidden units",
        "saturated": "fraction of (unit, example) with |h| > 0.9; not a number without hidden units",
        "input_gradient": "mean |∂loss/∂w| over the first layer's weights and the examples of the bin",
        "dead": "fraction of units that gave 0 on every example of the bin; not a number without hidden units",
        **COUNTS,
    }
    diagnostics: ClassVar[dict[str, str]] = {
        **DIAGNOSTICS,
        **RANKS,
        "hessian_rank": "rank of the Hessian of the mean loss on the probe, by all parameters",
        "hessian_effective_rank": "exp of the entropy of its eigenvalues' magnitudes",
    }
    hidden_metrics: ClassVar[tuple[str, ...]] = ("output_weight_magnitude", "saturated", "dead")
    """The metrics that are not a number in a network without hidden units."""
    performance = "error"
    performance_label = "squared error"
    loss = "error"
    outputs = 1

    name: Literal["bit_flipping"] = "bit_flipping"
    """Name of the problem in configs."""
    inputs: Count = 20
    """m, bits per example."""
    flipping_bits: CountFromZero = 15
    """f, how many of them change only every `flip_period` examples."""
    flip_period: Count = 10_000
    """T, examples between two flips."""
    target_units: Count = 100
    """Threshold units in the target network."""
    beta: Rate = 0.7
    """β of the threshold units."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.flipping_bits > self.inputs:
            raise SectionError(f".flipping_bits: must be at most inputs = {self.inputs}, got {self.flipping_bits}; use fewer")
        if self.target_units * (self.inputs + 1) > MOST_TARGET_WEIGHTS:
            found = f"{self.target_units} with {self.inputs} inputs"
            raise SectionError(f".target_units: must have at most {MOST_TARGET_WEIGHTS:,} weights, got {found}; use fewer")
        return self

    @property
    def change_period(self) -> int:
        return self.flip_period

    def stream(self, seed: int) -> "BitFlipping":
        """The problem of one seed."""
        return BitFlipping(seed, self)


class BitFlipping:
    """The problem of one seed.

    An example is m bits. The first f are the *flipping bits*: they start at random, and at t = T, 2T, … one of them, chosen
    at random, changes. The other m - f bits are random in every example. The target network has one hidden layer of linear
    threshold units, which see a constant 1 and the m bits. All weights are +1 or -1, and unit i gives

        1 if Σⱼ vᵢⱼ xⱼ > (m + 1)·β - Sᵢ else 0,    Sᵢ = number of its input weights that are -1.

    The target is the sum of the units' outputs with weights +1 or -1.

    Args:
      seed: fixes the target network, the flips and the bits.
      settings: a `BitFlippingConfig`; without it, one is made of `changes`.
      changes: settings that differ from the paper's, `flip_period=1000` say.

    Example:
      >>> inputs, targets = BitFlipping(seed=0).take(3, start=1_000_000)
      >>> inputs.shape, targets.shape
      ((3, 20), (3,))

    References:
      Dohare, Sutton and Mahmood (2022), section 2; the threshold unit is that of Sutton and Whitehead (1994).
    """

    def __init__(self, seed: int, settings: BitFlippingConfig | None = None, **changes: Any) -> None:
        self.seed = whole_number("seed", seed, below=SEEDS)
        settings = settings or make(BitFlippingConfig, changes)
        self.inputs, self.flipping_bits, self.flip_period = settings.inputs, settings.flipping_bits, settings.flip_period
        self.target_units, self.beta = settings.target_units, settings.beta

    @cached_property
    def input_weights(self) -> NDArray[np.int32]:
        """v, [target_units, 1 + m]; column 0 belongs to the constant input."""
        count = self.target_units * (self.inputs + 1)
        return self._signs(count, layer=0).reshape(self.target_units, self.inputs + 1)

    @cached_property
    def output_weights(self) -> NDArray[np.int32]:
        """Weights of the target's output, -1 or 1, [target_units]."""
        return self._signs(self.target_units, layer=1)

    def _signs(self, count: int, layer: int) -> NDArray[np.int32]:
        bits = words(self.seed, Purpose.TARGET, count, address=(layer, 0, 0)) >> np.uint64(63)
        return (2 * bits.astype(np.int32) - 1).astype(np.int32)

    @cached_property
    def thresholds(self) -> NDArray[np.float64]:
        """θ, [target_units]."""
        negative = (self.input_weights < 0).sum(axis=1)
        return np.asarray((self.inputs + 1) * self.beta - negative, dtype=np.float64)

    def target(self, x: NDArray[np.generic]) -> NDArray[np.float64]:
        """The target network's output for inputs [..., m]."""
        sums = x.astype(np.int32) @ self.input_weights[:, 1:].T + self.input_weights[:, 0]
        return np.asarray((sums > self.thresholds) @ self.output_weights, dtype=np.float64)

    def flipping(self, first_epoch: int, count: int) -> NDArray[np.uint8]:
        """The flipping bits in epochs `first_epoch …`, [count, f]; epoch e lasts from t = e·T to (e + 1)·T - 1."""
        f = self.flipping_bits
        bits = (words(self.seed, Purpose.FLIPS, f) >> np.uint64(63)).astype(np.uint8)
        if f == 0:
            return np.zeros((count, 0), dtype=np.uint8)
        last = first_epoch + count - 1
        draws = words(self.seed, Purpose.FLIPS, last, address=(1, 0, 0)) >> np.uint64(11)
        which = (draws.astype(np.float64) * 2.0**-53 * f).astype(np.int64)
        bits = bits ^ (np.bincount(which[:first_epoch], minlength=f) & 1).astype(np.uint8)
        states = np.zeros((count, f), dtype=np.uint8)
        states[0] = bits
        states[np.arange(1, count), which[first_epoch:]] = 1
        return np.bitwise_xor.accumulate(states, axis=0)

    def random_bits(self, start: int, count: int) -> NDArray[np.uint8]:
        """The other bits of examples `start …`, [count, m - f]: bit t·(m - f) + k of the stream is input f + k of example t."""
        width = self.inputs - self.flipping_bits
        first, last = start * width, (start + count) * width
        raw = words(self.seed, Purpose.INPUTS, -(-last // 64) - first // 64, first=first // 64)
        bits = np.unpackbits(raw.astype("<u8").view(np.uint8), bitorder="little")
        offset = first % 64
        return bits[offset : offset + last - first].reshape(count, width)

    def take(self, n: int, start: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        """Examples `start … start + n - 1`.

        Args:
          n: how many.
          start: position of the first. No example before it is made, but each of the `start / flip_period` flips before it
            is drawn: time and memory are linear in their number, about 0.1 µs per flip.

        Returns:
          Inputs [n, m] of 0 and 1, and targets [n].
        """
        if n < 1 or start < 0:
            raise InputError(f"take: n must be at least 1 and start at least 0, got n={n}, start={start}")
        first, last = start // self.flip_period, (start + n - 1) // self.flip_period
        epoch = np.arange(start, start + n) // self.flip_period - first
        states = self.flipping(first, last - first + 1)
        x = np.concatenate([states[epoch], self.random_bits(start, n)], axis=1)
        width = self.inputs - self.flipping_bits
        if width <= TABLE_BITS and n >= 1 << width:
            pattern = x[:, self.flipping_bits :] @ (1 << np.arange(width))
            y = np.empty(n)
            edges = np.searchsorted(epoch, np.arange(len(states) + 1))
            for e, state in enumerate(states):
                inside = slice(edges[e], edges[e + 1])
                y[inside] = self._table(state)[pattern[inside]]
            return x, y
        parts = range(0, n, EVALUATED_AT_ONCE)
        return x, np.concatenate([self.target(x[k : k + EVALUATED_AT_ONCE]) for k in parts])

    def probe(self, examples: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Inputs and targets to ask a network about that has seen `examples` examples: those that the next epoch may bring.

        All of them, each once, or the next 1,024 if there are more.
        """
        width = self.inputs - self.flipping_bits
        if width > PROBE_BITS:
            x, y = self.take(1 << PROBE_BITS, examples)
            return x.astype(np.float64), y
        (flipping,) = self.flipping(examples // self.flip_period, 1)
        patterns = (np.arange(1 << width)[:, None] >> np.arange(width)) & 1
        x = np.concatenate([np.broadcast_to(flipping, (1 << width, self.flipping_bits)), patterns], axis=1)
        return x.astype(np.float64), self.target(x)

    def _table(self, flipping: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Targets of all patterns of the other bits; bit k of the pattern is input f + k."""
        width = self.inputs - self.flipping_bits
        patterns = (np.arange(1 << width)[:, None] >> np.arange(width)) & 1
        constant = np.broadcast_to(flipping, (1 << width, self.flipping_bits))
        return self.target(np.concatenate([constant, patterns], axis=1))
