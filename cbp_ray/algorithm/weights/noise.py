"""Gaussian noise for every weight in every step: a function of seed, step and the weight's place, on any device.

A hash of 32 bits takes the place of a generator, because the noise of a whole network is needed in every step: other people's
perturbed gradient descent spends nine tenths of its time on random numbers. The four bytes of a hash are uniform; their sum and
three differences (the rows of a Hadamard matrix) are the noise of four weights. These are uncorrelated and nearly normal: they
end at 3.45 standard deviations, and their kurtosis is 2.7 instead of 3.
"""

import torch
from torch import Tensor

from cbp_ray.randomness import BYTES_DEVIATION, BYTES_MEAN, HASH_FACTORS, HASH_STEP, noise_keys

MASK = 0xFFFFFFFF
GROUP = 4
"""Weights that share a hash: neighbours in the row of one unit. Biases, and all else with one dimension, have one each."""


def hashes(numbers: Tensor, keys: tuple[int, int]) -> Tensor:
    """A hash of each number, int64 below 2**32. A product that overflows keeps its lowest bits, which are all that count."""
    x = numbers * HASH_STEP + keys[0] & MASK
    x ^= x >> 16
    x = x * HASH_FACTORS[0] & MASK
    x ^= x >> 15
    x = (x + keys[1] & MASK) * HASH_FACTORS[1] & MASK
    return x ^ x >> 16


class Noise:
    """The noise of some parameters.

    Args:
      parameters: the tensors, in the order of the model's.
      seed: seed of the noise.
    """

    def __init__(self, parameters: list[Tensor], seed: int) -> None:
        self.seed, self._groups, self._numbers = seed, list[Tensor](), list[Tensor]()
        groups = weights = 0
        for p in parameters:
            each = -(-p[0].numel() // GROUP) if p.ndim > 1 else 1
            count = (len(p) if p.ndim else 1) * each
            self._groups.append(torch.arange(groups, groups + count, device=p.device).view(-1, each))
            self._numbers.append(torch.arange(weights, weights + p.numel(), device=p.device).view(p.shape))
            groups, weights = groups + count, weights + p.numel()

    def uniform(self, step: int, place: int, like: Tensor) -> Tensor:
        """A number in [0, 1) for each weight of parameter number `place`, float64."""
        self._numbers[place] = self._numbers[place].to(like.device)
        return hashes(self._numbers[place], noise_keys(self.seed, step)).double() / 2**32

    def at(self, step: int, like: list[Tensor]) -> list[Tensor]:
        """Standard normal numbers for a step, in the shapes of the parameters `like`."""
        keys = noise_keys(self.seed, step)
        found = []
        for place, p in enumerate(like):
            self._groups[place] = self._groups[place].to(p.device)
            x = hashes(self._groups[place], keys)
            a, b, c, d = x & 255, x >> 8 & 255, x >> 16 & 255, x >> 24
            whole = a + b + c + d - BYTES_MEAN
            if p.ndim > 1:
                four = torch.stack([whole, a - b + c - d, a + b - c - d, a - b - c + d], dim=-1)
                whole = four.flatten(1)[:, : p[0].numel()]
            found.append((whole.double() / BYTES_DEVIATION).to(p.dtype).view(p.shape))
        return found
