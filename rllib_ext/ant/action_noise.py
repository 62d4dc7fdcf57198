"""Random numbers of exploration: standard normal, addressed by runner, global time-step and place in the rollout.

Like all random numbers of the project they are drawn from no generator with a memory, so a run that is resumed in the middle of
an episode explores as the unbroken one, and no two runners share a stream.
"""

import numpy as np
from numpy.typing import NDArray

from cbp_ray.randomness import Purpose, uniforms


def normals(seed: int, count: int, *, first: int, address: tuple[int, int, int]) -> NDArray[np.float32]:
    """Numbers `first … first + count - 1` of the normal stream at `address` (Box and Muller 1958, two from two uniform ones).

    Example:
      >>> whole = normals(7, 10, first=0, address=(1, 0, 2))
      >>> bool((whole[4:] == normals(7, 6, first=4, address=(1, 0, 2))).all())
      True
    """
    # The streams of the purpose `EPISODES` whose last word is 0 or 1 are the seeds of resets.
    begin, end = first // 2 * 2, -(-(first + count) // 2) * 2
    pairs = uniforms(seed, Purpose.EPISODES, end - begin, first=begin, address=address).reshape(-1, 2)
    radius, angle = np.sqrt(-2.0 * np.log1p(-pairs[:, 0])), 2.0 * np.pi * pairs[:, 1]
    numbers = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()
    return numbers[first - begin : first - begin + count].astype(np.float32)
