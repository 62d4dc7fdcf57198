"""Every random number of the project, addressed by what it is for instead of by when it was drawn.

All draws come from Philox4x64-10, a counter-based generator (Salmon et al. 2011), as `numpy.random.Philox` implements it:
word number n of a stream is a function of a key and a counter, so any part of a stream can be made alone, in any order, on
any node. The key is `(seed, purpose)`; the meaning of the counter's upper three words belongs to the purpose.

`philox_block` is the same function once more, in plain integer arithmetic, because Numba can't call NumPy's. The kernels
compile it; a test compares it with NumPy.
"""

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

UNIT_SCALE = 2.0**-53
"""A 64-bit word w becomes the float64 `(w >> 11) * UNIT_SCALE`, uniform in [0, 1)."""

MASK32 = np.uint64(0xFFFFFFFF)
SHIFT32 = np.uint64(32)
MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
KEY_STEPS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B))
HASH_STEP = 0x9E3779B9
HASH_FACTORS = (0x7FEB352D, 0x846CA68B)
"""Constants of `mix`, and the distance between the hashes of neighbours."""
BYTES_MEAN, BYTES_DEVIATION = 510, math.sqrt(4 * (256**2 - 1) / 12)
"""Of the sum of four uniform bytes."""


class Purpose(IntEnum):
    """What a stream is for: the second half of its key. Values are part of every result; never renumber them."""

    TARGET = 1
    FLIPS = 2
    INPUTS = 3
    INITIAL_WEIGHTS = 4
    NEW_UNIT = 5
    RANDOM_UTILITY = 6
    BERNOULLI = 7
    TASK_ORDER = 8
    TASK_PERMUTATION = 9
    FRICTION = 10
    MINI_BATCHES = 12
    EPISODES = 16
    NOISE = 17
    NEW_WEIGHTS = 18


def words(
    seed: int, purpose: Purpose, count: int, *, first: int = 0, address: tuple[int, int, int] = (0, 0, 0)
) -> NDArray[np.uint64]:
    """Words `first … first + count - 1` of the stream at `address`.

    Args:
      seed: any integer from 0 to 2**64 - 1.
      purpose: separates streams that share a seed.
      count: how many 64-bit words.
      first: position of the first word; skipping ahead costs nothing.
      address: the counter's upper three words.

    Example:
      >>> bool((words(7, Purpose.INPUTS, 10)[4:] == words(7, Purpose.INPUTS, 6, first=4)).all())
      True
    """
    block, offset = divmod(first, 4)
    key = np.array([seed, int(purpose)], dtype=np.uint64)
    # NumPy advances the counter before it makes a block.
    counter = np.array([block, *address], dtype=np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(offset + count)
    return np.asarray(raw, dtype=np.uint64)[offset:]


def uniforms(
    seed: int, purpose: Purpose, count: int, *, first: int = 0, address: tuple[int, int, int] = (0, 0, 0)
) -> NDArray[np.float64]:
    """Uniform float64 numbers in [0, 1), one per word of `words`."""
    raw = words(seed, purpose, count, first=first, address=address)
    return (raw >> np.uint64(11)).astype(np.float64) * UNIT_SCALE


def philox_block(
    seed: np.uint64, purpose: np.uint64, block: np.uint64, address_0: np.uint64, address_1: np.uint64, address_2: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Words `4·block … 4·block + 3` of `words(seed, purpose, …, address=…)`, for Numba to compile.

    The upper halves of the two 128-bit products are put together from 32-bit pieces. They are written out, twice, so that the
    function calls nothing and can be compiled as it stands.
    """
    key_0, key_1 = seed, purpose
    x_0, x_1, x_2, x_3 = block + np.uint64(1), address_0, address_1, address_2
    for _ in range(10):
        a_low, a_high = x_0 & MASK32, x_0 >> SHIFT32
        b_low, b_high = MULTIPLIERS[0] & MASK32, MULTIPLIERS[0] >> SHIFT32
        middle = a_high * b_low + ((a_low * b_low) >> SHIFT32)
        middle_low = (middle & MASK32) + a_low * b_high
        high_0 = a_high * b_high + (middle >> SHIFT32) + (middle_low >> SHIFT32)
        low_0 = MULTIPLIERS[0] * x_0

        a_low, a_high = x_2 & MASK32, x_2 >> SHIFT32
        b_low, b_high = MULTIPLIERS[1] & MASK32, MULTIPLIERS[1] >> SHIFT32
        middle = a_high * b_low + ((a_low * b_low) >> SHIFT32)
        middle_low = (middle & MASK32) + a_low * b_high
        high_1 = a_high * b_high + (middle >> SHIFT32) + (middle_low >> SHIFT32)
        low_1 = MULTIPLIERS[1] * x_2

        x_0, x_1, x_2, x_3 = high_1 ^ x_1 ^ key_0, low_1, high_0 ^ x_3 ^ key_1, low_0
        key_0, key_1 = key_0 + KEY_STEPS[0], key_1 + KEY_STEPS[1]
    return x_0, x_1, x_2, x_3


def mix(x: int) -> int:
    """A hash of 32 bits (Wellons' lowbias32)."""
    x ^= x >> 16
    x = x * HASH_FACTORS[0] & 0xFFFFFFFF
    x ^= x >> 15
    x = x * HASH_FACTORS[1] & 0xFFFFFFFF
    return x ^ x >> 16


def noise_seed(seed: int) -> tuple[int, int]:
    """The two words of 32 bits from which a run's noise is made."""
    first, second = (int(word) & 0xFFFFFFFF for word in words(seed, Purpose.NOISE, 2))
    return first, second


def noise_keys(seed: int, step: int) -> tuple[int, int]:
    """The two keys of the noise of a step below 2**32."""
    first, second = noise_seed(seed)
    return mix(step + first & 0xFFFFFFFF), mix((step ^ second) & 0xFFFFFFFF)
