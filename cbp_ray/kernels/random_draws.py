"""The random numbers of `cbp_ray.randomness` for compiled code: the same streams, word by word."""

from typing import Any

import numpy as np

from cbp_ray import randomness
from cbp_ray.kernels.compilation import inlined, separate
from cbp_ray.randomness import UNIT_SCALE, Purpose

INPUTS, NEW_UNIT = np.uint64(Purpose.INPUTS), np.uint64(Purpose.NEW_UNIT)
RANDOM_UTILITY, BERNOULLI = np.uint64(Purpose.RANDOM_UTILITY), np.uint64(Purpose.BERNOULLI)
NEW_WEIGHTS = np.uint64(Purpose.NEW_WEIGHTS)
ZERO, MANTISSA_SHIFT = np.uint64(0), np.uint64(11)

philox_block = separate(randomness.philox_block)


@inlined
def as_uniform(word: Any) -> Any:
    """A 64-bit word as a number in [0, 1)."""
    return np.float64(word >> MANTISSA_SHIFT) * UNIT_SCALE


@separate
def uniform(seed: Any, purpose: Any, number: Any, layer: Any, word: int) -> Any:
    """Number `word` of `randomness.uniforms(seed, purpose, …, address=(number, layer, 0))`."""
    block = philox_block(seed, purpose, np.uint64(word // 4), number, layer, ZERO)
    k = word % 4
    return as_uniform(block[0] if k == 0 else block[1] if k == 1 else block[2] if k == 2 else block[3])


@separate
def fill_uniforms(numbers: Any, seed: Any, purpose: Any, number: Any, layer: Any, count: int) -> None:
    """Writes the first `count` numbers of that stream into `numbers`, which has room for up to three more."""
    for first in range(0, count, 4):
        block = philox_block(seed, purpose, np.uint64(first // 4), number, layer, ZERO)
        for k in range(4):
            numbers[first + k] = as_uniform(block[k])
