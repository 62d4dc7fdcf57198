"""Bit-Flipping for a block of runs: `problems.bit_flipping` once more, with the run innermost, so that data costs little.

The width of a block is that of the arrays, so that the compiled code serves any width.
"""

from typing import Any

import numpy as np

from cbp_ray.kernels.compilation import compile_cached
from cbp_ray.kernels.lanes import use_wide_vectors
from cbp_ray.kernels.random_draws import BERNOULLI, INPUTS, ZERO, as_uniform, philox_block

SHIFT32, MASK32 = np.uint64(32), np.uint64(0xFFFFFFFF)
WORDS_PER_BLOCK = 8
"""32-bit words in a Philox block."""


@compile_cached
def fill_bits(seeds: Any, first_block: int, bits: Any) -> None:
    """Writes words of the stream `Purpose.INPUTS` from Philox block `first_block` on, as 32-bit halves, lower half first.

    Args:
      seeds: uint64 [WIDTH].
      first_block: counted in blocks of four 64-bit words.
      bits: uint32 [8·blocks, WIDTH], filled.
    """
    runs = bits.shape[1]
    for block in range(bits.shape[0] // WORDS_PER_BLOCK):
        row = block * WORDS_PER_BLOCK
        for lane in range(runs):
            words = philox_block(seeds[lane], INPUTS, np.uint64(first_block + block), ZERO, ZERO, ZERO)
            for k in range(4):
                bits[row + 2 * k, lane] = words[k] & MASK32
                bits[row + 2 * k + 1, lane] = words[k] >> SHIFT32


@compile_cached
def fill_draws(seeds: Any, first_step: int, draws: Any) -> None:
    """Writes uniform numbers of the stream `Purpose.BERNOULLI`, one per step and lane, into float64 [steps, WIDTH]."""
    runs = draws.shape[1]
    for t in range(draws.shape[0]):
        for lane in range(runs):
            word = philox_block(seeds[lane], BERNOULLI, ZERO, np.uint64(first_step + t), ZERO, ZERO)[0]
            draws[t, lane] = as_uniform(word)


@compile_cached
def sum_constant_bits(weights: Any, flipping: Any, sums: Any) -> None:
    """Sums v·x of each LTU over the constant 1 and the flipping bits.

    Args:
      weights: int32 [1 + inputs, units, WIDTH], the constant input's first.
      flipping: int32 [flipping bits, WIDTH].
      sums: int32 [units, WIDTH], filled.
    """
    runs = sums.shape[1]
    for unit in range(sums.shape[0]):
        for lane in range(runs):
            sums[unit, lane] = weights[0, unit, lane]
        for j in range(flipping.shape[0]):
            for lane in range(runs):
                sums[unit, lane] += weights[1 + j, unit, lane] * flipping[j, lane]


@compile_cached
def fill_table(weights: Any, output_weights: Any, thresholds: Any, sums: Any, flipping_bits: int, table: Any) -> None:
    """Writes the target of every pattern of the other bits, whose bit k is input `flipping_bits + k`.

    Args:
      weights: as in `sum_constant_bits`.
      output_weights: int32 [units, WIDTH].
      thresholds: float64 [units, WIDTH].
      sums: what `sum_constant_bits` made.
      flipping_bits: how many inputs are constant.
      table: [2**(inputs - flipping_bits), WIDTH], filled; its dtype is the learner's.
    """
    runs = table.shape[1]
    value, total = np.zeros(runs, np.int32), np.zeros(runs, np.int32)
    for pattern in range(table.shape[0]):
        value[:] = 0
        for unit in range(sums.shape[0]):
            for lane in range(runs):
                total[lane] = sums[unit, lane]
            for k in range(weights.shape[0] - 1 - flipping_bits):
                if (pattern >> k) & 1:
                    for lane in range(runs):
                        total[lane] += weights[1 + flipping_bits + k, unit, lane]
            for lane in range(runs):
                if total[lane] > thresholds[unit, lane]:
                    value[lane] += output_weights[unit, lane]
        for lane in range(runs):
            table[pattern, lane] = value[lane]


@compile_cached
def look_up(bits: Any, first_bit: int, width: int, table: Any, targets: Any) -> None:
    """Writes the targets [examples, WIDTH] of the next examples, whose `width` ≤ 32 bits each are places in the table."""
    use_wide_vectors()
    runs = targets.shape[1]
    pattern = np.zeros(runs, np.int64)
    mask, last = (np.uint64(1) << np.uint64(width)) - np.uint64(1), bits.shape[0] - 1
    for t in range(targets.shape[0]):
        position = first_bit + t * width
        row, shift = position // 32, np.uint64(position % 32)
        # A pattern may reach into the next word.
        following = min(row + 1, last)
        for lane in range(runs):
            both = np.uint64(bits[row, lane]) | (np.uint64(bits[following, lane]) << SHIFT32)
            pattern[lane] = np.int64((both >> shift) & mask)
        for lane in range(runs):
            targets[t, lane] = table[pattern[lane], lane]


@compile_cached
def evaluate(
    bits: Any, first_bit: int, weights: Any, output_weights: Any, thresholds: Any, sums: Any, flipping_bits: int, targets: Any
) -> None:
    """Does the same as `look_up` without a table, for problems whose table would be too large."""
    width = weights.shape[0] - 1 - flipping_bits
    runs = targets.shape[1]
    total, value = np.zeros(runs, np.int32), np.zeros(runs, np.int32)
    x = np.zeros((width, runs), np.int32)
    for t in range(targets.shape[0]):
        for k in range(width):
            position = first_bit + t * width + k
            row, shift = position // 32, np.uint32(position % 32)
            for lane in range(runs):
                x[k, lane] = (bits[row, lane] >> shift) & np.uint32(1)
        value[:] = 0
        for unit in range(sums.shape[0]):
            for lane in range(runs):
                total[lane] = sums[unit, lane]
            for k in range(width):
                for lane in range(runs):
                    total[lane] += weights[1 + flipping_bits + k, unit, lane] * x[k, lane]
            for lane in range(runs):
                if total[lane] > thresholds[unit, lane]:
                    value[lane] += output_weights[unit, lane]
        for lane in range(runs):
            targets[t, lane] = value[lane]
