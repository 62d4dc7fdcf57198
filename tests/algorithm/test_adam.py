"""Our Adam: torch's until a reset, per-weight time steps from then on."""

import copy

import naive
import numpy as np
import pytest
import torch
from long_tests import first
from torch import nn

from cbp_ray import Adam
from cbp_ray.algorithm.optimizer_state import reset_weights
from cbp_ray.errors import InputError


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 2)).to(dtype)


def train(model, optimizer, steps, start=0):
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(5, 1, 4, 4, generator=generator).to(model[0].weight.dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", first(1, [torch.float32, torch.float64]))
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9)])
def test_equals_torch_bit_for_bit_until_a_reset(dtype, foreach, weight_decay, betas):
    ours, theirs = net(dtype), net(dtype)
    train(ours, Adam(ours.parameters(), 0.01, betas, weight_decay=weight_decay, fused=False), 300)
    train(theirs, torch.optim.Adam(theirs.parameters(), 0.01, betas, weight_decay=weight_decay, foreach=foreach), 300)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9)])
def test_per_weight_time_steps_equal_the_oracle(betas):
    rng = np.random.default_rng(0)
    parameter = nn.Parameter(torch.from_numpy(rng.normal(size=(4, 5))))
    ours, reference = Adam([parameter], 0.01, betas, weight_decay=0.1), naive.Adam(0.01, 0.1, betas)
    expected = {"w": parameter.detach().numpy().copy()}
    for step in range(400):
        gradient = rng.normal(size=(4, 5)) * (1 + step % 3)
        parameter.grad = torch.from_numpy(gradient.copy())
        ours.step()
        reference.step(expected, {"w": gradient})
        if step % 17 == 3:
            row, column = int(rng.integers(4)), int(rng.integers(5))
            ours.reset_weights(parameter, 0, torch.tensor([row]))
            reference.reset("w", (row, slice(None)))
            if step % 2:
                ours.reset_weights(parameter, 1, torch.tensor([column]))
                reference.reset("w", (slice(None), column))
        np.testing.assert_array_equal(ours.time_steps(parameter).numpy(), reference.t["w"])
        np.testing.assert_allclose(parameter.detach().numpy(), expected["w"], rtol=1e-11, atol=1e-12)


def test_one_step_after_a_reset_moves_a_weight_by_the_full_step_size():
    model = net()
    ours = Adam(model.parameters(), lr=0.01)
    train(model, ours, 100)
    weight = model[3].weight
    ours.reset_weights(weight, 0, torch.tensor([2]))
    before = weight.detach().clone()
    train(model, ours, 1, start=9999)
    moved = (weight - before).detach().abs()[2][weight.grad[2] != 0]
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-2, atol=0)


def test_a_loaded_state_goes_on_bit_for_bit_with_exact_counters():
    model, other = net(torch.bfloat16), net(torch.bfloat16)
    ours = Adam(model.parameters(), lr=0.01)
    train(model, ours, 3)
    weight = model[3].weight
    ours.state[weight]["time_step"] = 2**24 + 1  # a count that bfloat16 and float32 can't hold
    ours.reset_weights(weight, 0, torch.tensor([1]))
    other.load_state_dict(model.state_dict())
    theirs = Adam(other.parameters(), lr=0.01)
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert torch.equal(theirs.time_steps(other[3].weight), ours.time_steps(weight))
    assert int(theirs.time_steps(other[3].weight)[0, 0]) == 2**24 + 1
    train(model, ours, 5, start=3)
    train(other, theirs, 5, start=3)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_group_of_several_dtypes():
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(3, 3, dtype=d)) for d in (torch.bfloat16, torch.float64)]
    alone = nn.Parameter(parameters[1].detach().clone())
    together, separate = Adam(parameters, lr=0.01), Adam([alone], lr=0.01)
    for step in range(20):
        for p in (*parameters, alone):
            p.grad = torch.randn(3, 3, generator=torch.Generator().manual_seed(step)).to(p.dtype)
        together.step()
        separate.step()
        if step == 5:
            for optimizer, p in ((together, parameters[1]), (separate, alone)):
                optimizer.reset_weights(p, 0, torch.tensor([1]))
    assert torch.equal(parameters[1], alone)


def test_parameters_without_gradient_and_closures():
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = Adam([used, unused], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = used.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert torch.equal(unused, torch.ones(2))
    optimizer.reset_weights(unused, 0, torch.tensor([0]))
    assert torch.equal(optimizer.time_steps(unused), torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("kwargs", [{"lr": -1.0}, {"betas": (0.9, 1.0)}, {"eps": -1e-8}, {"weight_decay": -0.1}])
def test_bad_arguments(kwargs):
    with pytest.raises(InputError, match=f"Adam: {next(iter(kwargs))}"):
        Adam([nn.Parameter(torch.ones(1))], **kwargs)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01, initial_accumulator_value=0.3),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_state_tensor_of_a_torch_optimizer_is_reset_where_a_weight_is(name):
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, 5)
    weight = model[3].weight
    before = {k: v.clone() for k, v in optimizer.state[weight].items() if isinstance(v, torch.Tensor)}
    reset_weights(optimizer, weight, 1, torch.tensor([3, 4]))
    shaped = [key for key, value in before.items() if value.shape == weight.shape]
    assert shaped
    fresh = {("Adagrad", "sum"): 0.3, ("Rprop", "step_size"): 0.01}
    for key in shaped:
        after = optimizer.state[weight][key]
        assert torch.all(after[:, [3, 4]] == fresh.get((name, key), 0.0)), key
        assert torch.equal(after[:, [0, 1, 2, 5]], before[key][:, [0, 1, 2, 5]]), key
    train(model, optimizer, 2, start=5)
    assert torch.isfinite(weight).all()
