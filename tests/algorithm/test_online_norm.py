"""OnlineNorm against the oracle, and what it is for."""

import naive
import numpy as np
import pytest
import torch
from torch import nn

from cbp_ray import OnlineNorm
from cbp_ray.errors import InputError


@pytest.mark.parametrize("batch", [1, 7])
def test_forward_and_backward_equal_the_oracle(batch):
    rng = np.random.default_rng(0)
    ours, reference = OnlineNorm(4, 0.99, 0.9).double(), naive.OnlineNorm(4, 0.99, 0.9)
    with torch.no_grad():
        ours.weight.copy_(torch.from_numpy(rng.normal(size=4)))
        ours.bias.copy_(torch.from_numpy(rng.normal(size=4)))
    reference.scale, reference.bias = ours.weight.detach().numpy().copy(), ours.bias.detach().numpy().copy()
    for _ in range(200):
        x = torch.from_numpy(rng.normal(2, 3, size=(batch, 4))).requires_grad_()
        gradient = rng.normal(size=(batch, 4))
        y = ours(x)
        ours.zero_grad()
        y.backward(torch.from_numpy(gradient))
        expected = reference.forward(x.detach().numpy())
        scale, bias, inputs = reference.backward(gradient)
        for found, wanted in [(y, expected), (ours.weight.grad, scale), (ours.bias.grad, bias), (x.grad, inputs)]:
            np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-9, atol=1e-11)
    for found, wanted in [
        (ours.mean, reference.mean),
        (ours.variance, reference.variance),
        (ours.control_u, reference.u),
        (ours.control_v, reference.v),
    ]:
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9)


def test_output_is_normalized_in_the_long_run():
    torch.manual_seed(0)
    norm = OnlineNorm(3, 0.99, 0.9)
    y = torch.cat([norm(torch.randn(1, 3) * torch.tensor([0.1, 1.0, 10.0]) + 5).detach() for _ in range(4000)])[2000:]
    assert y.mean(0).abs().max() < 0.1
    assert (y.std(0) - 1).abs().max() < 0.1


@pytest.mark.long
def test_the_control_process_takes_out_what_normalization_would():
    """In batch normalization the gradient of the input is orthogonal to 1 and to y; online, so it is on average."""
    torch.manual_seed(0)
    norm = OnlineNorm(1, 0.999, 0.99)
    dots = []
    for _ in range(6000):
        x = torch.randn(1, 1).requires_grad_()
        y = norm(x)
        y.backward(1 + 0.5 * y.detach())
        dots.append([float(x.grad), float(x.grad * y.detach())])
    assert np.abs(np.mean(dots[3000:], axis=0)).max() < 0.02


def test_positions_of_an_image_are_one_time_step():
    torch.manual_seed(0)
    norm = OnlineNorm(2, 0.9, 0.9)
    x = torch.randn(1, 2, 3, 3) + 4
    norm(x)
    torch.testing.assert_close(norm.mean, 0.1 * x.mean((0, 2, 3)))
    within = x.var((0, 2, 3), unbiased=False)
    torch.testing.assert_close(norm.variance, 0.9 + 0.1 * within + 0.09 * x.mean((0, 2, 3)).square())


def test_evaluation_uses_and_keeps_the_statistics():
    norm = OnlineNorm(2)
    norm.mean.fill_(1.0)
    norm.variance.fill_(4.0)
    norm.eval()
    torch.testing.assert_close(norm(torch.full((3, 2), 3.0)), torch.ones(3, 2), rtol=1e-4, atol=0)
    assert torch.all(norm.mean == 1) and torch.all(norm.variance == 4)


def test_split_run_equals_the_unbroken_run(tmp_path):
    def train(model, optimizer, start, steps):
        for step in range(start, start + steps):
            x = torch.randn(1, 3, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            (model(x) - x.sum()).square().mean().backward()
            optimizer.step()

    def fresh():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), OnlineNorm(4), nn.Tanh(), nn.Linear(4, 1))
        return model, torch.optim.SGD(model.parameters(), 0.01)

    unbroken, first, second = fresh(), fresh(), fresh()
    train(*unbroken, 0, 100)
    train(*first, 0, 40)
    second[0].load_state_dict(first[0].state_dict())
    train(*second, 40, 60)
    for a, b in zip(unbroken[0].state_dict().values(), second[0].state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_bad_arguments_and_shapes():
    with pytest.raises(InputError, match="alpha_forward: must be a number in"):
        OnlineNorm(3, 1.0)
    with pytest.raises(InputError, match=r"must get \[N, 3, \.\.\.\], got \[2, 4\]"):
        OnlineNorm(3)(torch.ones(2, 4))
