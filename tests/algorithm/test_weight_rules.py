"""Methods that act on weights: each against its equations written out, switched off, resumed, and with bad arguments."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbp_ray import Adam, initialize
from cbp_ray.algorithm.weights import UPGD, L2Init, ShrinkAndPerturb, Wasserstein, WeightClipping, WeightReinitialization
from cbp_ray.algorithm.weights import noise as noises
from cbp_ray.algorithm.weights.rule import WeightRule
from cbp_ray.errors import InputError

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda p, **more: torch.optim.SGD(p, lr=0.05, **more),
    "adam": lambda p, **more: torch.optim.Adam(p, lr=0.02, **more),
    "ours": lambda p, **more: Adam(p, lr=0.02, fused=False, **more),
}
OFF: dict[str, Callable[..., WeightRule]] = {
    "l2_init": lambda m, o: L2Init(m, o, strength=0),
    "wasserstein": lambda m, o: Wasserstein(m, o, strength=0),
    "shrink_perturb": lambda m, o: ShrinkAndPerturb(m, o, noise=0),
    "initial": lambda m, o: ShrinkAndPerturb(m, o, noise=0, variant="initial"),
    "clipping": lambda m, o: WeightClipping(m, o, factor=1e9),
    "upgd": lambda m, o: UPGD(m, o, noise=0, protects=False),
    "swr": lambda m, o: WeightReinitialization(m, o, rate=0),
}
ON: dict[str, Callable[..., WeightRule]] = {
    "l2_init": lambda m, o: L2Init(m, o, strength=0.1),
    "wasserstein": lambda m, o: Wasserstein(m, o, strength=0.1),
    "shrink_perturb": lambda m, o: ShrinkAndPerturb(m, o, noise=0.01, seed=3),
    "initial": lambda m, o: ShrinkAndPerturb(m, o, noise=0.01, variant="initial", shrinkage=0.02, seed=3),
    "clipping": lambda m, o: WeightClipping(m, o, factor=0.5),
    "upgd": lambda m, o: UPGD(m, o, noise=0.1, decay=0.9, seed=3),
    "free upgd": lambda m, o: UPGD(m, o, noise=0.1, decay=0.9, protects=False, seed=3),
    "swr": lambda m, o: WeightReinitialization(m, o, rate=0.1, every=3, decay=0.5, seed=3),
}


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to(dtype)
    initialize(model, "kaiming", activation="tanh", seed=1)
    return model


def loss_of(model: nn.Module, step: int) -> Tensor:
    draws = torch.Generator().manual_seed(step)
    x, y = torch.randn(3, 4, generator=draws, dtype=torch.float64), torch.randn(3, 2, generator=draws, dtype=torch.float64)
    dtype = next(model.parameters()).dtype
    return (model(x.to(dtype)) - y.to(dtype)).square().mean()


def train(model: nn.Module, optimizer: Any, method: WeightRule | None, first: int = 0, last: int = 20) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        if method is not None:
            method.step()


def weights(model: nn.Module) -> list[Any]:
    return [p.detach().numpy().copy() for p in model.parameters()]


def assert_equal(a: nn.Module, b: nn.Module) -> None:
    for ours, theirs in zip(weights(a), weights(b), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def assert_close(a: nn.Module, b: Any) -> None:
    for ours, theirs in zip(weights(a), b, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", OFF)
def test_switched_off_it_is_backprop_bit_for_bit(method: str, optimizer: str) -> None:
    model, plain = network(torch.float32), network(torch.float32)
    own, other = OPTIMIZERS[optimizer](model.parameters()), OPTIMIZERS[optimizer](plain.parameters())
    train(model, own, OFF[method](model, own))
    train(plain, other, None)
    assert_equal(model, plain)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ON)
def test_it_acts_and_goes_on_to_the_last_bit(method: str, optimizer: str) -> None:
    model, plain = network(), network()
    own, other = OPTIMIZERS[optimizer](model.parameters()), OPTIMIZERS[optimizer](plain.parameters())
    made = ON[method](model, own)
    train(model, own, made, last=10)
    saved = copy.deepcopy((model.state_dict(), own.state_dict(), made.state_dict()))
    train(model, own, made, first=10)
    train(plain, other, None)
    assert any((a != b).any() for a, b in zip(weights(model), weights(plain), strict=True))

    again = network()
    resumed = OPTIMIZERS[optimizer](again.parameters())
    method_again = ON[method](again, resumed)
    again.load_state_dict(saved[0]), resumed.load_state_dict(saved[1]), method_again.load_state_dict(saved[2])
    train(again, resumed, method_again, first=10)
    assert_equal(again, model)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_l2_init_is_a_term_of_the_loss(optimizer: str) -> None:
    model, other = network(), network()
    own, theirs = OPTIMIZERS[optimizer](model.parameters()), OPTIMIZERS[optimizer](other.parameters())
    train(model, own, L2Init(model, own, strength=0.3))
    initial = [p.detach().clone() for p in other.parameters()]
    for step in range(20):
        theirs.zero_grad()
        distance = sum((p - p0).square().sum() for p, p0 in zip(other.parameters(), initial, strict=True))
        (loss_of(other, step) + 0.3 / 2 * distance).backward()
        theirs.step()
    assert_close(model, weights(other))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_wasserstein_distance_is_a_term_of_the_loss(optimizer: str) -> None:
    model, other = network(), network()
    own, theirs = OPTIMIZERS[optimizer](model.parameters()), OPTIMIZERS[optimizer](other.parameters())
    train(model, own, Wasserstein(model, own, strength=0.3))
    initial = [p.detach().flatten().sort().values for p in other.parameters()]
    for step in range(20):
        theirs.zero_grad()
        pairs = zip(other.parameters(), initial, strict=True)
        distance = sum((p.flatten().sort().values - p0).square().sum() for p, p0 in pairs)
        (loss_of(other, step) + 0.3 / 2 * distance).backward()
        theirs.step()
    assert_close(model, weights(other))


def test_weights_that_change_places_cost_nothing() -> None:
    """Of the Wasserstein regulariser, whose term is one of the distribution; L2-Init pulls each back to its own place."""
    model = nn.Linear(4, 3, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    method = Wasserstein(model, optimizer, strength=0.5)
    with torch.no_grad():
        model.weight.copy_(model.weight.flip(0, 1))
    before = model.weight.detach().clone()
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    method.step()
    assert torch.equal(model.weight, before)


SIGNS = ((1, 1, 1, 1), (1, -1, 1, -1), (1, 1, -1, -1), (1, -1, -1, 1))


def naive_noise(seed: int, step: int, number: int, place: int = 0) -> float:
    """The noise of the weight at a place of a group of four, with Python's integers."""
    keys = noises.noise_keys(seed, step)
    x = (number * 0x9E3779B9 + keys[0]) % 2**32
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = (x + keys[1]) % 2**32 * 0x846CA68B % 2**32
    x ^= x >> 16
    total = sum(sign * byte for sign, byte in zip(SIGNS[place], x.to_bytes(4, "little"), strict=True))
    return (total - (510 if place == 0 else 0)) / np.sqrt(21845)


def naive_noises(seed: int, step: int, parameters: Any) -> list[Any]:
    """The noise of all parameters: four neighbours in the row of a unit share a number, and biases have one each."""
    number, found = 0, []
    for p in parameters:
        noise = np.zeros(p.shape)
        for row in range(len(p)):
            columns = p.shape[1] if p.ndim > 1 else 1
            for j in range(columns):
                noise.reshape(len(p), columns)[row, j] = naive_noise(seed, step, number + j // 4, j % 4)
            number += -(-columns // 4)
        found.append(noise)
    return found


def test_noise_is_a_function_of_seed_step_and_place() -> None:
    parameters = [torch.zeros(shape, dtype=torch.float64) for shape in ((3, 4), (5,), (2, 7), (2,))]
    for seed, step in ((0, 1), (7, 2), (2**64 - 1, 10**9)):
        for made, expected in zip(
            noises.Noise(parameters, seed).at(step, parameters), naive_noises(seed, step, parameters), strict=True
        ):
            np.testing.assert_array_equal(made, expected)


def test_noise_is_nearly_normal_and_independent() -> None:
    like = [torch.zeros(400, 500, dtype=torch.float64)]
    made = noises.Noise(like, 5)
    steps = [made.at(step, like)[0].flatten().numpy() for step in range(1, 6)]
    for x in steps:
        assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01 and abs((x**4).mean() - 2.7) < 0.05
        # Within 1, 2 and 3 standard deviations, as a sum of four bytes has it.
        assert [round(float((np.abs(x) < bound).mean()), 2) for bound in (1, 2, 3)] == [0.67, 0.96, 1.0]
        for lag in (1, 2, 4, 5, 500):
            assert abs((x[lag:] * x[:-lag]).mean()) < 0.01
    for earlier, later in itertools.pairwise(steps):
        assert abs((earlier * later).mean()) < 0.01
    other = noises.Noise(like, 6).at(1, like)[0].flatten().numpy()
    assert abs((steps[0] * other).mean()) < 0.01
    one = noises.Noise([torch.zeros(1, dtype=torch.float64)], 5)
    in_time = np.array([one.at(step, [torch.zeros(1, dtype=torch.float64)])[0].item() for step in range(4000)])
    assert abs(in_time.mean()) < 0.06 and abs((in_time[1:] * in_time[:-1]).mean()) < 0.06


@pytest.mark.parametrize(("variant", "size"), [("nature2024", 0.01), ("gradient", -0.01 * 0.05)])
def test_noise_of_shrink_and_perturb(variant: Any, size: float) -> None:
    model, other = network(), network()
    own, theirs = (OPTIMIZERS["sgd"](m.parameters(), weight_decay=0.1) for m in (model, other))
    train(model, own, ShrinkAndPerturb(model, own, noise=0.01, variant=variant, seed=9))
    for step in range(20):
        theirs.zero_grad()
        loss_of(other, step).backward()
        theirs.step()
        with torch.no_grad():
            for p, noise in zip(other.parameters(), naive_noises(9, step + 1, list(other.parameters())), strict=True):
                p += size * torch.from_numpy(noise)
    assert_close(model, weights(other))


def test_shrink_and_perturb_towards_fresh_initial_weights() -> None:
    model = nn.Sequential(nn.Linear(50, 400), nn.LayerNorm(400))
    initialize(model[0], "lecun", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = ShrinkAndPerturb(model, optimizer, noise=0.5, variant="initial", shrinkage=1.0)
    method.step()
    first = model[0].weight.detach().clone()
    method.step()
    second = model[0].weight.detach()
    bound = 0.5 * (3 / 50) ** 0.5
    assert 0.99 * bound < float(second.abs().max()) <= bound and abs(float((first * second).mean())) < 1e-3
    assert not model[0].bias.any() and bool((model[1].weight == 0.5).all()) and not model[1].bias.any()


def test_clipping_keeps_to_the_initial_range_and_counts() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    method = WeightClipping(model, optimizer, factor=1.5, last_layer=False)
    assert list(method.bounds) == ["0.weight", "0.bias"]
    optimizer.zero_grad()
    loss_of(model, 0).backward()
    optimizer.step()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    report = method.step()
    bound = 1.5 * 5 / 3 * (3 / 4) ** 0.5  # the gain of tanh is 5/3
    for name in method.bounds:
        np.testing.assert_array_equal(model.get_parameter(name).detach(), before[name].clamp(-bound, bound))
        assert report.changed.get(name, 0) == int((before[name].abs() > bound).sum())
    assert report.changed["0.weight"] > 0
    assert bool((model[2].weight == before["2.weight"]).all())


@pytest.mark.parametrize("protects", [True, False])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_upgd_is_its_equations(kind: str, protects: bool) -> None:
    model, other = network(), network()
    own, theirs = (OPTIMIZERS[kind](m.parameters(), weight_decay=0.1) for m in (model, other))
    rate, decay, sigma = (0.05 if kind == "sgd" else 0.02), 0.8, 0.3
    train(model, own, UPGD(model, own, sigma, decay, protects, seed=4))
    traces = [np.zeros(p.shape) for p in other.parameters()]
    for step in range(20):
        theirs.zero_grad()
        loss_of(other, step).backward()
        before = weights(other)
        gradients: list[Any] = [p.grad.numpy().copy() for p in other.parameters()]  # type: ignore[union-attr]
        theirs.step()
        for trace, g, w in zip(traces, gradients, before, strict=True):
            trace[...] = decay * trace - (1 - decay) * g * w
        largest = max(trace.max() for trace in traces)
        made = naive_noises(4, step + 1, before)
        for p, trace, g, w, noise in zip(other.parameters(), traces, gradients, before, made, strict=True):
            free = 1 - 1 / (1 + np.exp(-(trace / (1 - decay ** (step + 1))) / largest))
            xi = sigma * noise
            if kind == "sgd":
                change = -rate * ((g + xi) * free if protects else g + xi * free) - rate * 0.1 * w
            else:
                own_change = p.detach().numpy() - w
                change = 2 * free * (own_change - rate * xi) if protects else own_change - 2 * rate * xi * free
            with torch.no_grad():
                p.copy_(torch.from_numpy(w + change))
    assert_close(model, weights(other))


def test_upgd_without_a_useful_weight_does_not_turn_its_order_round() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = UPGD(model, optimizer, noise=0, decay=0.0)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0]]))
    model.weight.grad = torch.tensor([[1.0, 1.0]], dtype=torch.float64)  # utilities -1 and -2
    optimizer.step()
    method.step()
    np.testing.assert_allclose(model.weight.detach(), [[0.95, 1.95]])


@pytest.mark.parametrize("utility", ["gradient", "magnitude"])
def test_the_weights_of_least_use_are_drawn_anew(utility: Any) -> None:
    model = nn.Sequential(nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 2))
    initialize(model, "kaiming", activation="relu", seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    method = WeightReinitialization(model, optimizer, rate=0.1, every=2, utility=utility, seed=1)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 50, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        before_step = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer.step()
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        report = method.step()
        assert bool(report.changed) == (step == 1)
    expected: dict[str, Tensor] = {}
    for name, p in model.named_parameters():
        assert p.grad is not None
        expected[name] = (p.grad * before_step[name]).abs() if utility == "gradient" else before[name].abs()
    weight, u = model[0].weight, expected["0.weight"].flatten()
    changed = (weight != before["0.weight"]).flatten()
    assert int(changed.sum()) == report.changed["0.weight"] == method.replaced["0.weight"] == 100
    assert float(u[changed].max()) <= float(u[~changed].min())
    bound = 2**0.5 * (3 / 50) ** 0.5
    assert float(weight.flatten()[changed].detach().abs().max()) <= bound
    for moment in ("exp_avg", "exp_avg_sq"):
        value = optimizer.state[weight][moment].flatten()
        assert not value[changed].any() and bool(value[~changed].any())
    # A rate of 0.1 of the two output biases is rounded at random, and new biases are zero.
    assert report.changed.get("2.bias", 0) in (0, 1)


def test_new_weights_come_at_the_rate_on_average() -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = WeightReinitialization(model, optimizer, rate=0.1, every=1, utility="random")
    for _ in range(2000):
        method.step()
    assert abs(method.replaced["weight"] - 600) < 80


def test_a_utility_that_is_not_a_number_is_never_the_smallest() -> None:
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = WeightReinitialization(model, optimizer, rate=0.5, every=1)
    model.weight.grad = torch.tensor([[float("nan"), 1.0, float("inf"), 2.0]])
    with torch.no_grad():
        model.weight.fill_(9.0)
    optimizer.step()
    method.step()
    np.testing.assert_array_equal(model.weight.detach().abs() < 1, [[False, True, False, True]])


def test_several_optimizers_are_one_step() -> None:
    model, other = network(), network()
    two = [torch.optim.SGD(model[0].parameters(), lr=0.05), torch.optim.SGD(model[2].parameters(), lr=0.05)]
    one = torch.optim.SGD(other.parameters(), lr=0.05)
    method, single = UPGD(model, two, decay=0.9), UPGD(other, one, decay=0.9)
    for step in range(5):
        for each in two:
            each.zero_grad()
        loss_of(model, step).backward()
        for each in two:
            each.step()
        method.step()
    train(other, one, single, last=5)
    assert_equal(model, other)


def test_after_close_nothing_happens() -> None:
    model, plain = network(), network()
    own, other = OPTIMIZERS["sgd"](model.parameters()), OPTIMIZERS["sgd"](plain.parameters())
    L2Init(model, own, strength=1.0).close()
    train(model, own, None)
    train(plain, other, None)
    assert_equal(model, plain)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda m, o: L2Init(m, o, -1.0), "strength"),
        (lambda m, o: ShrinkAndPerturb(m, o, float("nan")), "noise"),
        (lambda m, o: ShrinkAndPerturb(m, o, 0.1, "nature"), "variant"),
        (lambda m, o: ShrinkAndPerturb(m, o, 0.1, shrinkage=0.1), "shrinkage"),
        (lambda m, o: WeightClipping(m, o, 0), "factor"),
        (lambda m, o: UPGD(m, o, decay=1.0), "decay"),
        (lambda m, o: UPGD(m, o, noise=True), "noise"),
        (lambda m, o: WeightReinitialization(m, o, rate=1.1), "rate"),
        (lambda m, o: WeightReinitialization(m, o, every=0), "every"),
        (lambda m, o: WeightReinitialization(m, o, utility="overall"), "utility"),
        (lambda m, o: L2Init(nn.Linear(2, 2), o), "holds no parameter"),
        (lambda m, o: L2Init("model", o), "model"),
    ],
)
def test_bad_arguments(make: Callable[..., Any], what: str) -> None:
    model = network()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with pytest.raises(InputError, match=what):
        make(model, optimizer)
    train(model, optimizer, None, last=1)  # nothing stays behind


@pytest.mark.parametrize("method", ["clipping", "initial", "swr"])
def test_what_is_drawn_anew_does_not_depend_on_the_weights_at_loading(method: str) -> None:
    model = network()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    made = ON[method](model, optimizer)
    other = network()
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(7)
    del other[0].__dict__["_cbp_ray_initial_distribution"], other[2].__dict__["_cbp_ray_initial_distribution"]
    again = ON[method](other, OPTIMIZERS["sgd"](other.parameters()))
    again.load_state_dict(made.state_dict())
    if method == "clipping":
        assert again.bounds == made.bounds  # type: ignore[attr-defined]
    else:
        assert again._distributions == made._distributions  # type: ignore[attr-defined]


def test_a_closure_that_computes_gradients_anew_is_refused() -> None:
    model = network()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    L2Init(model, optimizer, strength=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    with pytest.raises(InputError, match=r"^L2Init: optimizer\.step\(closure\)"):
        optimizer.step(closure)


def test_a_step_without_gradients_is_not_the_methods() -> None:
    """An optimizer that steps while the network had no part in the mini-batch does not use up the method's turn."""
    model, other = network(), network()
    own, theirs = OPTIMIZERS["sgd"](model.parameters()), OPTIMIZERS["sgd"](other.parameters())
    method, reference = L2Init(model, own, strength=0.3), L2Init(other, theirs, strength=0.3)
    train(model, own, method, last=3)
    train(other, theirs, reference, last=3)
    own.zero_grad()
    own.step()
    train(model, own, method, first=3, last=6)
    train(other, theirs, reference, first=3, last=6)
    assert_equal(model, other)


def test_clipping_may_spare_every_layer_that_feeds_nothing() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.body(x))
            return self.first(h), self.second(h)

    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert set(WeightClipping(model, optimizer, 1.0, last_layer=False).bounds) == {"body.weight", "body.bias"}
    assert len(WeightClipping(model, optimizer, 1.0).bounds) == 6
