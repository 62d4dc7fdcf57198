"""The Bit-Flipping stream: position-independence, the target network, the statistics of flips and bits."""

import itertools

import numpy as np
import pytest

from cbp_ray.errors import InputError
from cbp_ray.problems import BitFlipping
from cbp_ray.problems.bit_flipping import TABLE_BITS


def threshold_network(problem, x):
    """The paper's formula for one example, in plain loops."""
    total = 0
    for v, w in zip(problem.input_weights, problem.output_weights, strict=True):
        negative = sum(1 for weight in v if weight == -1)
        activity = v[0] * 1 + sum(weight * bit for weight, bit in zip(v[1:], x.tolist(), strict=True))
        if activity > (problem.inputs + 1) * problem.beta - negative:
            total += w
    return total


@pytest.mark.parametrize(
    "settings", [{}, {"inputs": 16, "flipping_bits": 2, "flip_period": 7}, {"beta": 0.5, "target_units": 3}]
)
def test_targets_are_those_of_the_threshold_network(settings):
    problem = BitFlipping(11, **settings)
    x, y = problem.take(30_000)
    for t in range(0, 30_000, 1_234):
        assert y[t] == threshold_network(problem, x[t])


def test_table_and_direct_evaluation_agree():
    problem = BitFlipping(1, flip_period=500)
    x, y = problem.take(3_000)
    assert TABLE_BITS >= 20 - 15
    np.testing.assert_array_equal(problem.target(x), y)


@pytest.mark.parametrize(("start", "n"), [(0, 1), (9_999, 2), (12_345, 777), (63, 64), (1_000_000, 10)])
@pytest.mark.parametrize("settings", [{}, {"inputs": 70, "flipping_bits": 3}])
def test_any_part_of_the_stream_can_be_taken_alone(start, n, settings):
    first = max(0, start - 100)
    ref_x, ref_y = BitFlipping(5, **settings).take(start + n - first, start=first)
    x, y = BitFlipping(5, **settings).take(n, start=start)
    np.testing.assert_array_equal(x, ref_x[start - first :])
    np.testing.assert_array_equal(y, ref_y[start - first :])


def test_exactly_one_flipping_bit_changes_every_period():
    x, _ = BitFlipping(3, flip_period=10).take(20_000)
    changed = (x[1:, :15] != x[:-1, :15]).sum(axis=1)
    expected = np.zeros(19_999, dtype=int)
    expected[9::10] = 1
    np.testing.assert_array_equal(changed, expected)


def test_flips_choose_uniformly_and_independently():
    states = np.concatenate([BitFlipping(seed).flipping(0, 3_001) for seed in range(10)]).astype(int)
    flips = np.abs(np.diff(states, axis=0)).reshape(-1, 15)
    which = np.array([f.argmax() for f in flips if f.sum() == 1])
    counts = np.bincount(which, minlength=15)
    # χ² with 14 degrees of freedom stays below 36 in 999 of 1000 samples.
    assert ((counts - len(which) / 15) ** 2 / (len(which) / 15)).sum() < 36
    assert abs((which[1:] == which[:-1]).mean() - 1 / 15) < 0.006


def test_flipping_bits_jump_to_any_epoch():
    problem = BitFlipping(9)
    np.testing.assert_array_equal(problem.flipping(0, 500)[[0, 17, 499]], [problem.flipping(e, 1)[0] for e in (0, 17, 499)])


def test_random_bits_are_fair_and_independent():
    x, _ = BitFlipping(2).take(100_000)
    bits = x[:, 15:].astype(float)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.006
    assert np.abs(np.corrcoef(bits.T) - np.eye(5)).max() < 0.012
    assert np.abs([np.corrcoef(bits[1:, k], bits[:-1, k])[0, 1] for k in range(5)]).max() < 0.012


def test_initial_bits_and_weights_are_fair_over_seeds():
    problems = [BitFlipping(seed) for seed in range(400)]
    assert abs(np.mean([p.flipping(0, 1) for p in problems]) - 0.5) < 0.02
    assert abs(np.mean([p.input_weights for p in problems])) < 0.005
    assert abs(np.mean([p.output_weights for p in problems])) < 0.02
    assert all(set(np.unique(p.input_weights)) == {-1, 1} for p in problems)


def test_seeds_differ():
    streams = [BitFlipping(seed).take(100) for seed in range(5)]
    for (x, y), (other_x, other_y) in itertools.combinations(streams, 2):
        assert (x != other_x).any() and (y != other_y).any()


@pytest.mark.parametrize(
    "settings",
    [
        {"flipping_bits": 21},
        {"flipping_bits": -1},
        {"flip_period": 0},
        {"inputs": 20.5},
        {"target_units": True},
        {"beta": float("nan")},
        {"beta": "high"},
        {"betta": 0.5},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 1.5},
        {"seed": True},
    ],
)
def test_bad_settings_are_refused(settings):
    (field,) = settings
    with pytest.raises(InputError, match=f"^{field}: .*got "):
        BitFlipping(**{"seed": 0, **settings})


def test_the_kernels_stream_is_the_same_stream():
    """The kernel makes bits and targets by itself; a linear learner that never moves shows them."""
    from cbp_ray.experiments.config import OnlineConfig
    from cbp_ray.experiments.engines.lane_bit_flipping import LaneBlock

    for inputs, flipping in ((20, 15), (20, 0), (5, 5), (16, 3)):
        config = OnlineConfig.make(
            {
                "problem": {"inputs": inputs, "flipping_bits": flipping, "flip_period": 300},
                "algorithm": {"name": "linear"},
                "optimizer": {"name": "sgd", "step_size": 1e-300},
                "dtype": "float64",
            }
        )
        seen = []

        def learner(state, scratch, bits, targets, draws, choices, numbers, n, m, constant, first_bit, first_step, seen=seen):
            for t in range(len(targets)):
                positions = first_bit + t * (m - constant) + np.arange(m - constant)
                random = (bits[positions // 32] >> (positions % 32).astype(np.uint32)[:, None]) & 1
                seen.append((np.concatenate([scratch.x[:constant], random]).T.copy(), targets[t].copy()))

        from cbp_ray.kernels.lanes import WIDTH

        block = LaneBlock(config, range(WIDTH), learner)
        block.advance(500)
        block.advance(250)
        for lane in (0, 1, WIDTH - 1):
            x, y = BitFlipping(lane, inputs=inputs, flipping_bits=flipping, flip_period=300).take(750)
            np.testing.assert_array_equal([s[0][lane] for s in seen], x)
            np.testing.assert_array_equal([s[1][lane] for s in seen], y)
