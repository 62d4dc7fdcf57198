"""Gaussian noise for every weight in every step: a function of seed, step and the weight's number, on any device.

A hash of 32 bits takes the place of a generator, because the noise of a whole network is needed in every step: other people's
perturbed gradient descent spends nine tenths of its time on random numbers. The sum of a hash's four bytes, which are uniform,
is nearly normal: it ends at 3.45 standard deviations, and its kurtosis is 2.7 instead of 3.
"""

import math

import numpy as np
import torch
from torch import Tensor

from cbp_ray.randomness import Purpose, words

MASK = 0xFFFFFFFF
GOLDEN, FIRST, SECOND = 0x9E3779B9, 0x7FEB352D, 0x846CA68B
MEAN, DEVIATION = 4 * 127.5, math.sqrt(4 * (256**2 - 1) / 12)
"""Of the sum of four uniform bytes."""


def mix(x: int) -> int:
    """A hash of 32 bits (Wellons' lowbias32)."""
    x ^= x >> 16
    x = x * FIRST & MASK
    x ^= x >> 15
    x = x * SECOND & MASK
    return x ^ x >> 16


def step_keys(seed: int, step: int) -> tuple[int, int]:
    """The two keys of a step's noise."""
    first, second = (int(word) & MASK for word in words(seed, Purpose.NOISE, 2))
    return mix(step + first & MASK), mix(step ^ second)


def hashes(numbers: Tensor, keys: tuple[int, int]) -> Tensor:
    """A hash of each number, int64 below 2**32. A product that overflows keeps its lowest bits, which are all that count."""
    x = numbers * GOLDEN + keys[0] & MASK
    x ^= x >> 16
    x = x * FIRST & MASK
    x ^= x >> 15
    x = (x + keys[1] & MASK) * SECOND & MASK
    return x ^ x >> 16


class Noise:
    """The noise of some parameters, which are numbered in order, weight by weight.

    Args:
      parameters: the tensors, in the order of the model's.
      seed: seed of the noise.
    """

    def __init__(self, parameters: list[Tensor], seed: int) -> None:
        self.seed = seed
        ends = np.cumsum([p.numel() for p in parameters])
        self._numbers = [
            torch.arange(end - p.numel(), end, device=p.device).view(p.shape) for p, end in zip(parameters, ends, strict=True)
        ]

    def at(self, step: int, like: list[Tensor]) -> list[Tensor]:
        """Standard normal numbers for a step, in the shapes of the parameters `like`."""
        keys = step_keys(self.seed, step)
        found = []
        for place, p in enumerate(like):
            if self._numbers[place].device != p.device:
                self._numbers[place] = self._numbers[place].to(p.device)
            x = hashes(self._numbers[place], keys)
            total = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)
            found.append(((total.double() - MEAN) / DEVIATION).to(p.dtype))
        return found
