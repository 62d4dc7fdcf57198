"""Bit-Flipping for a block of runs: `problems.bit_flipping` once more, with the run innermost, so that data costs nothing."""

from typing import Any

import numpy as np
from numba import njit

from cbp_ray.kernels import lanes
from cbp_ray.kernels.lanes import use_wide_vectors
from cbp_ray.kernels.unit_replacement import BERNOULLI, MANTISSA_SHIFT, philox_block
from cbp_ray.randomness import UNIT_SCALE, Purpose

WIDTH = lanes.WIDTH
INPUTS = np.uint64(Purpose.INPUTS)
ZERO, SHIFT32, MASK32 = np.uint64(0), np.uint64(32), np.uint64(0xFFFFFFFF)
WORDS_PER_BLOCK = 8
"""32-bit words in a Philox block."""


@njit(cache=True)
def fill_bits(seeds: Any, first_block: int, bits: Any) -> None:
    """Words of the stream `Purpose.INPUTS` from Philox block `first_block` on, as 32-bit halves, lower half first.

    Args:
      seeds: uint64 [WIDTH].
      first_block: counted in blocks of four 64-bit words.
      bits: uint32 [8·blocks, WIDTH], filled.
    """
    for block in range(bits.shape[0] // WORDS_PER_BLOCK):
        row = block * WORDS_PER_BLOCK
        for lane in range(WIDTH):
            words = philox_block(seeds[lane], INPUTS, np.uint64(first_block + block), ZERO, ZERO, ZERO)
            for k in range(4):
                bits[row + 2 * k, lane] = words[k] & MASK32
                bits[row + 2 * k + 1, lane] = words[k] >> SHIFT32


@njit(cache=True)
def fill_draws(seeds: Any, first_step: int, draws: Any) -> None:
    """Uniform numbers of the stream `Purpose.BERNOULLI`, one per step and lane, into float64 [steps, WIDTH]."""
    for t in range(draws.shape[0]):
        for lane in range(WIDTH):
            word = philox_block(seeds[lane], BERNOULLI, ZERO, np.uint64(first_step + t), ZERO, ZERO)[0]
            draws[t, lane] = np.float64(word >> MANTISSA_SHIFT) * UNIT_SCALE


@njit(cache=True)
def sum_constant_bits(weights: Any, flipping: Any, sums: Any) -> None:
    """Each LTU's Σ v·x over the constant 1 and the flipping bits.

    Args:
      weights: int32 [1 + inputs, units, WIDTH], the constant input's first.
      flipping: int32 [flipping bits, WIDTH].
      sums: int32 [units, WIDTH], filled.
    """
    for unit in range(sums.shape[0]):
        for lane in range(WIDTH):
            sums[unit, lane] = weights[0, unit, lane]
        for j in range(flipping.shape[0]):
            for lane in range(WIDTH):
                sums[unit, lane] += weights[1 + j, unit, lane] * flipping[j, lane]


@njit(cache=True)
def fill_table(weights: Any, output_weights: Any, thresholds: Any, sums: Any, flipping_bits: int, table: Any) -> None:
    """The target for every pattern of the other bits: [2**(inputs - flipping_bits), WIDTH]; bit k is input flipping_bits + k.

    Args:
      weights: as in `sum_constant_bits`.
      output_weights: int32 [units, WIDTH].
      thresholds: float64 [units, WIDTH].
      sums: what `sum_constant_bits` made.
      flipping_bits: how many inputs are constant.
      table: filled; its dtype is the learner's.
    """
    value, total = np.zeros(WIDTH, np.int32), np.zeros(WIDTH, np.int32)
    for pattern in range(table.shape[0]):
        value[:] = 0
        for unit in range(sums.shape[0]):
            for lane in range(WIDTH):
                total[lane] = sums[unit, lane]
            for k in range(weights.shape[0] - 1 - flipping_bits):
                if (pattern >> k) & 1:
                    for lane in range(WIDTH):
                        total[lane] += weights[1 + flipping_bits + k, unit, lane]
            for lane in range(WIDTH):
                if total[lane] > thresholds[unit, lane]:
                    value[lane] += output_weights[unit, lane]
        for lane in range(WIDTH):
            table[pattern, lane] = value[lane]


@njit(cache=True)
def look_up(bits: Any, first_bit: int, width: int, table: Any, targets: Any) -> None:
    """Targets [examples, WIDTH] of the next examples from their `width` ≤ 32 bits each, by `fill_table`'s table."""
    use_wide_vectors()
    pattern = np.zeros(WIDTH, np.int64)
    mask, last = (np.uint64(1) << np.uint64(width)) - np.uint64(1), bits.shape[0] - 1
    for t in range(targets.shape[0]):
        position = first_bit + t * width
        row, shift = position // 32, np.uint64(position % 32)
        # A pattern may reach into the next word.
        following = min(row + 1, last)
        for lane in range(WIDTH):
            both = np.uint64(bits[row, lane]) | (np.uint64(bits[following, lane]) << SHIFT32)
            pattern[lane] = np.int64((both >> shift) & mask)
        for lane in range(WIDTH):
            targets[t, lane] = table[pattern[lane], lane]


@njit(cache=True)
def evaluate(
    bits: Any, first_bit: int, weights: Any, output_weights: Any, thresholds: Any, sums: Any, flipping_bits: int, targets: Any
) -> None:
    """The same as `look_up` without a table, for problems whose table would be too large."""
    width = weights.shape[0] - 1 - flipping_bits
    total, value = np.zeros(WIDTH, np.int32), np.zeros(WIDTH, np.int32)
    x = np.zeros((width, WIDTH), np.int32)
    for t in range(targets.shape[0]):
        for k in range(width):
            position = first_bit + t * width + k
            row, shift = position // 32, np.uint32(position % 32)
            for lane in range(WIDTH):
                x[k, lane] = (bits[row, lane] >> shift) & np.uint32(1)
        value[:] = 0
        for unit in range(sums.shape[0]):
            for lane in range(WIDTH):
                total[lane] = sums[unit, lane]
            for k in range(width):
                for lane in range(WIDTH):
                    total[lane] += weights[1 + flipping_bits + k, unit, lane] * x[k, lane]
            for lane in range(WIDTH):
                if total[lane] > thresholds[unit, lane]:
                    value[lane] += output_weights[unit, lane]
        for lane in range(WIDTH):
            targets[t, lane] = value[lane]
