"""Dead units and ranks of layers whose answer is known."""

import numpy as np
import pytest

from cbp_ray.experiments.hidden_outputs import describe


def test_orthogonal_outputs_of_equal_size_have_full_rank():
    for shape in ((50, 8), (8, 50)):
        found = describe(np.eye(*shape, dtype=np.float32) * 3)
        assert found.stable_rank == pytest.approx(8) and found.effective_rank == pytest.approx(8)
    assert describe(np.eye(50, 8)).dead == 0


def test_known_singular_values():
    """σ = 3, 4: Σσ² / max σ² = 25/16, and the entropy is that of (3/7, 4/7)."""
    rng = np.random.default_rng(0)
    left, right = np.linalg.qr(rng.normal(size=(40, 2)))[0], np.linalg.qr(rng.normal(size=(10, 2)))[0]
    found = describe(left * [3, 4] @ right.T)
    assert found.stable_rank == pytest.approx(25 / 16)
    share = np.array([3, 4]) / 7
    assert found.effective_rank == pytest.approx(np.exp(-(share * np.log(share)).sum()))


def test_dead_layers_have_rank_zero_and_diverged_ones_none():
    assert describe(np.zeros((5, 4))) == (1.0, 0.0, 0.0, 0.0)
    h = np.zeros((5, 4))
    h[0, 1] = 2
    assert describe(h) == (0.75, 1.0, 1.0, 1.0)
    h[0, 1] = np.nan
    found = describe(h)
    assert found.dead == 0.75 and np.isnan(found.stable_rank) and np.isnan(found.effective_rank)
