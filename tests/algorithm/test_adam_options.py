"""What `torch.optim.Adam` and `AdamW` can do, side by side with ours."""

import copy
import itertools

import pytest
import torch
from torch import nn

from cbp_ray import Adam, AdamW, GenerateAndTest
from cbp_ray.errors import InputError

PAIRS = {"Adam": (Adam, torch.optim.Adam), "AdamW": (AdamW, torch.optim.AdamW)}


def net(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 2)).to(dtype)


def train(model, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(5, 1, 6, generator=generator).to(model[0].weight.dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def assert_equal(ours, theirs):
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("amsgrad", "maximize"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("kind", PAIRS)
def test_every_option_equals_torch_bit_for_bit(kind, amsgrad, maximize, dtype):
    make, reference = PAIRS[kind]
    ours, theirs = net(dtype), net(dtype)
    for weight_decay in (None, 0.0, 0.3):
        settings = {"lr": 0.01, "amsgrad": amsgrad, "maximize": maximize}
        settings |= {} if weight_decay is None else {"weight_decay": weight_decay}
        train(ours, make(ours.parameters(), fused=False, **settings), range(30))
        train(theirs, reference(theirs.parameters(), **settings), range(30))
        assert_equal(ours, theirs)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_learning_rate_as_tensor_equals_torch_and_follows_the_tensor(kind):
    make, reference = PAIRS[kind]
    ours, theirs = net(), net()
    # In float32, torch divides the tensor by the bias correction in float32; ours is the number that it holds.
    rates = torch.tensor(0.01, dtype=torch.float64), torch.tensor(0.01, dtype=torch.float64)
    optimizers = make(ours.parameters(), lr=rates[0], fused=False), reference(theirs.parameters(), lr=rates[1], foreach=False)
    for steps in (range(10), range(10, 20)):
        train(ours, optimizers[0], steps)
        train(theirs, optimizers[1], steps)
        assert_equal(ours, theirs)
        for rate in rates:
            rate.mul_(0.5)


@pytest.mark.parametrize("kind", PAIRS)
def test_schedulers_groups_and_closures_equal_torch(kind):
    def run(make, **settings):
        model = net()
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[3:].parameters(), "weight_decay": 0.2}]
        optimizer = make(groups, lr=0.01, **settings)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 1, 6, dtype=torch.float64)).square().mean()
            loss.backward()
            return loss

        for _ in range(20):
            optimizer.step(closure)
            scheduler.step()
        return model

    make, reference = PAIRS[kind]
    assert_equal(run(make, fused=False), run(reference))


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("kind", PAIRS)
def test_states_go_from_torch_to_ours_and_back(kind, amsgrad):
    make, reference = PAIRS[kind]
    settings = {"lr": 0.01, "weight_decay": 0.1, "amsgrad": amsgrad}
    unbroken = net()
    train(unbroken, reference(unbroken.parameters(), **settings), range(30))
    model = net()
    theirs = reference(model.parameters(), **settings)
    train(model, theirs, range(10))
    ours = make(model.parameters(), fused=False)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    train(model, ours, range(10, 20))
    assert ours.time_steps(model[3].weight).unique().tolist() == [20]
    again = reference(model.parameters())
    again.load_state_dict(copy.deepcopy(ours.state_dict()))
    train(model, again, range(20, 30))
    assert_equal(model, unbroken)
    # And once more to ours: what torch counted in between counts.
    ours.load_state_dict(copy.deepcopy(again.state_dict()))
    assert ours.time_steps(model[3].weight).unique().tolist() == [30]


def test_a_run_of_torchs_goes_on_with_generate_and_test():
    model = net(torch.float32)[3:]
    theirs = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(2, 12)).sum().backward()
    theirs.step()
    ours = AdamW(model.parameters())
    ours.load_state_dict(theirs.state_dict())
    gnt = GenerateAndTest(model, ours, 0.2, maturity_threshold=1)
    for _ in range(5):
        ours.zero_grad()
        model(torch.randn(4, 12)).square().sum().backward()
        ours.step()
        gnt.step()
    assert sum(gnt.replaced.values()) > 2


@pytest.mark.parametrize("kind", PAIRS)
def test_the_compiled_step_is_the_default_and_equal_to_rounding(kind):
    make, _ = PAIRS[kind]
    results = []
    for fused in (None, False):
        model = net(torch.float32)
        optimizer = make(model.parameters(), lr=0.01, weight_decay=0.1, fused=fused)
        train(model, optimizer, range(30))
        optimizer.reset_weights(model[3].weight, 0, torch.tensor([2]))
        train(model, optimizer, range(30, 60))
        results.append(model)
        assert (optimizer._compiled is None) == (fused is False)
    for a, b in zip(results[0].parameters(), results[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not all(torch.equal(a, b) for a, b in zip(results[0].parameters(), results[1].parameters(), strict=True))


def test_a_reset_forgets_the_largest_second_moment():
    model = net()
    optimizer = Adam(model.parameters(), amsgrad=True)
    train(model, optimizer, range(5))
    optimizer.reset_weights(model[3].weight, 1, torch.tensor([4]))
    largest = optimizer.state[model[3].weight]["max_exp_avg_sq"]
    assert not largest[:, 4].any() and largest[:, 3].all()


def test_sparse_gradients_are_refused_in_one_line():
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = Adam(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(InputError, match=r"Adam: the gradient of a parameter of shape \[5, 3\] is sparse") as error:
        optimizer.step()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["capturable", "differentiable"])
def test_what_makes_no_sense_is_refused_by_name(name):
    with pytest.raises(InputError, match=f"AdamW: {name} must be False"):
        AdamW(net().parameters(), **{name: True})


@pytest.mark.parametrize("foreach", [None, False, True])
def test_foreach_is_accepted(foreach):
    ours, theirs = net(), net()
    train(ours, Adam(ours.parameters(), foreach=foreach), range(5))
    train(theirs, torch.optim.Adam(theirs.parameters(), foreach=foreach), range(5))
    assert_equal(ours, theirs)
