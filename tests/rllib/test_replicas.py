"""Generate-and-test where the examples of a step are not all in one forward pass of one process."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from cbp_ray import GenerateAndTest, initialize


@pytest.mark.parametrize("preset", ["paper", "nature2024"])
def test_replicas_that_average_over_each_other_make_the_replacements_of_one_with_all_data(preset):
    """Two copies with half of the examples each, in two threads, against one with all of them."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    initialize(whole, "lecun")
    models = [whole, copy.deepcopy(whole), copy.deepcopy(whole)]
    gnts = [GenerateAndTest(m, torch.optim.SGD(m.parameters(), lr=0.0), 0.05, 3, preset=preset) for m in models]
    barrier, shared = threading.Barrier(2, timeout=20), [torch.empty(0)] * 2

    def train(number):
        def average(tensor):
            shared[number - 1] = tensor.clone()
            barrier.wait()
            tensor.copy_((shared[0] + shared[1]) / 2)
            barrier.wait()

        if number:
            gnts[number].average_over_replicas = average
        for step in range(30):
            x = torch.randn(10, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            models[number](x[5 * number - 5 : 5 * number] if number else x)
            gnts[number].step()

    train(0)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, (1, 2)))
    for of_all, *of_halves in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(*of_halves)
        torch.testing.assert_close(of_halves[0], of_all, rtol=1e-9, atol=1e-12)  # averages of averages are rounded otherwise
    assert sum(gnts[0].replaced.values()) > 10


def test_forward_passes_can_be_forgotten():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    other = copy.deepcopy(model)
    gnts = [GenerateAndTest(m, torch.optim.SGD(m.parameters(), lr=0.0)) for m in (model, other)]
    model(torch.randn(100, 4))
    gnts[0].forget_forwards()
    x = torch.randn(5, 4)
    for m, gnt in zip((model, other), gnts, strict=True):
        m(x)
        gnt.step()
    for a, b in zip(*(gnt.state_dict()["layers"]["0"].values() for gnt in gnts), strict=True):
        assert a.equal(b) if isinstance(a, torch.Tensor) else a == b
