"""Counter-based randomness: the Numba twin equals NumPy, streams can be entered anywhere."""

import numba
import numpy as np
import pytest

from cbp_ray.randomness import Purpose, philox_block, uniforms, words

CASES = [(0, 5, 0, (0, 0, 0)), (2**64 - 1, 6, 3, (1, 2, 3)), (12345, 1, 10**9, (2**63, 7, 2**40))]


@pytest.mark.parametrize(("seed", "purpose", "block", "address"), CASES)
@pytest.mark.parametrize("compiled", [False, True])
def test_the_plain_arithmetic_version_equals_numpy(compiled, seed, purpose, block, address):
    function = numba.njit(philox_block) if compiled else philox_block
    with np.errstate(over="ignore"):
        found = function(*(np.uint64(x) for x in (seed, purpose, block, *address)))
    expected = words(seed, Purpose(purpose), 4, first=4 * block, address=address)
    assert [int(x) for x in found] == expected.tolist()


def test_a_stream_can_be_entered_anywhere():
    whole = words(3, Purpose.INPUTS, 50)
    for first in range(12):
        assert (words(3, Purpose.INPUTS, 20, first=first) == whole[first : first + 20]).all()


def test_streams_of_other_seeds_purposes_and_addresses_differ():
    streams = [
        words(3, Purpose.INPUTS, 8),
        words(4, Purpose.INPUTS, 8),
        words(3, Purpose.FLIPS, 8),
        words(3, Purpose.INPUTS, 8, address=(1, 0, 0)),
        words(3, Purpose.INPUTS, 8, address=(0, 1, 0)),
        words(3, Purpose.INPUTS, 8, address=(0, 0, 1)),
    ]
    assert len({int(x) for stream in streams for x in stream}) == 48


def test_uniforms_are_uniform():
    draws = uniforms(1, Purpose.NEW_UNIT, 100_000)
    assert draws.min() >= 0 and draws.max() < 1
    assert np.abs(np.histogram(draws, 10, (0, 1))[0] / 10_000 - 1).max() < 0.05
