"""ReDo and self-normalised resets against their rules written out."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cbp_ray import Adam, initialize
from cbp_ray.algorithm.unit_resets import ReDo, SelfNormalizedResets
from cbp_ray.errors import InputError


def network(units: int = 12) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU(), nn.Linear(units, 1)).double()
    initialize(model, "kaiming", activation="relu", seed=2)
    with torch.no_grad():
        model[0].bias[:3] = -50.0  # dead
        model[0].bias[3] = -1.5  # rarely active
    return model


def train(model: nn.Sequential, optimizer: Any, method: Any, first: int, last: int, batch: int = 1) -> list[Any]:
    """Trains, and returns what each step replaced and what the units of the first layer gave."""
    seen = []
    for step in range(first, last):
        x = torch.randn(batch, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        h = model[:2](x)
        (model[2:](h) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        replaced = method.step().replaced if method is not None else {}
        seen.append((replaced, h.detach().numpy().copy()))
    return seen


def test_redo_recycles_exactly_the_dormant_units() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    redo = ReDo(model, optimizer, threshold=0.25, every=10, decay_rate=0.8)
    average, correction = np.zeros(12), np.zeros(12)
    recycled = []
    for step, (replaced, h) in enumerate(train(model, optimizer, redo, 0, 40), 1):
        average, correction = 0.8 * average + 0.2 * np.abs(h).mean(0), 0.8 * correction + 0.2
        activity = average / correction
        expected = np.flatnonzero(activity <= 0.25 * activity.mean()) if step % 10 == 0 else np.zeros(0, int)
        assert replaced.get("0", []) == expected.tolist()
        average[expected], correction[expected] = 0, 0
        recycled += expected.tolist()
    assert {0, 1, 2} <= set(recycled) and redo.replaced["0"] == len(recycled)


def test_a_recycled_unit_is_new_and_the_optimizer_has_forgotten_it() -> None:
    model = network()
    optimizer = Adam(model.parameters(), lr=1e-3)
    redo = ReDo(model, optimizer, threshold=0.0, every=5)
    train(model, optimizer, redo, 0, 4)
    before = [p.detach().clone() for p in model.parameters()]
    ((replaced, _),) = train(model, optimizer, redo, 4, 5)
    assert replaced["0"] == [0, 1, 2]
    # New units of the next layer read those of this one.
    old = [i for i in range(12) if i not in replaced.get("2", [])]
    assert not model[0].bias[:3].any() and not model[2].weight[old, :3].any()
    assert float(model[0].weight[:3].detach().abs().max()) <= 2**0.5 * (3 / 6) ** 0.5
    assert bool((model[0].weight[:3] != before[0][:3]).any(1).all())
    for moment in ("exp_avg", "exp_avg_sq"):
        assert not optimizer.state[model[0].weight][moment][:3].any()
        assert not optimizer.state[model[2].weight][moment][:, :3].any()
    assert optimizer.time_steps(model[0].weight)[:3].eq(0).all()


@pytest.mark.parametrize("batch", [1, 4])
def test_self_normalised_resets_are_their_rule(batch: int) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    snr = SelfNormalizedResets(model, optimizer, rejection=0.02, maturity_threshold=20, decay_rate=0.95)
    average, correction, age = np.zeros(12), np.zeros(12), np.zeros(12)
    silence, firing, reset = np.zeros(12), np.zeros(12), []
    for replaced, h in train(model, optimizer, snr, 0, 150, batch):
        age += 1
        rate = (h > 0).mean(0)
        average, correction = 0.95 * average + 0.05 * rate, 0.95 * correction + 0.05
        fired = rate > 0
        silence = np.where(fired, 0, silence + batch)
        firing = np.where(fired, average / correction, firing)
        expected = []
        for i in range(12):
            p = firing[i] or firing[firing > 0].mean()
            if age[i] > 20 and silence[i] > 0 and (1 - p) ** silence[i] <= 0.02:
                expected.append(i)
        assert replaced.get("0", []) == expected
        for vector in (average, correction, age, silence, firing):
            vector[expected] = 0
        reset += expected
    # The dead ones, which never fired, go as soon as they are mature.
    assert {0, 1, 2} <= set(reset) and len(reset) == snr.replaced["0"]


def test_silence_counts_the_examples_and_positions_of_a_units_own_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 36, 3), nn.ReLU(), nn.Linear(3, 1))
    with torch.no_grad():
        model[0].bias[0] = model[3].bias[0] = -1e3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    snr = SelfNormalizedResets(model, optimizer)
    for _ in range(2):
        model(torch.randn(5, 1, 8, 8)).sum().backward()
        optimizer.step()
        snr.step()
    assert snr.silence[[0, 2]].tolist() == [2 * 5 * 36, 2 * 5]


@pytest.mark.parametrize("kind", ["redo", "snr"])
def test_saved_and_loaded_midway_equals_the_unbroken_run(kind: str) -> None:
    def made(model: nn.Module, optimizer: Any) -> Any:
        if kind == "redo":
            return ReDo(model, optimizer, threshold=0.7, every=7, decay_rate=0.9)
        return SelfNormalizedResets(model, optimizer, rejection=0.05, maturity_threshold=10, decay_rate=0.9)

    model = network()
    optimizer = Adam(model.parameters(), lr=1e-3)
    method = made(model, optimizer)
    train(model, optimizer, method, 0, 30)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), method.state_dict()))
    whole = train(model, optimizer, method, 30, 60)
    assert any(replaced for replaced, _ in whole)
    again = network()
    resumed = Adam(again.parameters(), lr=1e-3)
    method_again = made(again, resumed)
    again.load_state_dict(saved[0]), resumed.load_state_dict(saved[1]), method_again.load_state_dict(saved[2])
    rest = train(again, resumed, method_again, 30, 60)
    assert [replaced for replaced, _ in rest] == [replaced for replaced, _ in whole]
    for ours, theirs in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_switched_off_they_are_backprop_bit_for_bit() -> None:
    plain = network()
    train(plain, torch.optim.SGD(plain.parameters(), lr=1e-2), None, 0, 40)
    for kind in ("redo", "snr"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        method: Any = ReDo(model, optimizer, every=10**9) if kind == "redo" else SelfNormalizedResets(model, optimizer, 0.0)
        train(model, optimizer, method, 0, 40)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_residual_network_has_its_units_recycled_as_a_whole() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x: Any) -> Any:
            h = torch.relu(self.first(x))
            return self.out(torch.relu(h + self.inner(h)))

    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    redo = ReDo(model, optimizer, threshold=10.0, every=2)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 4, generator=torch.Generator().manual_seed(step))).mean().backward()
        optimizer.step()
        report = redo.step()
    assert report.replaced and not model.out.weight.any()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda m, o: ReDo(m, o, threshold=-0.1), "threshold"),
        (lambda m, o: ReDo(m, o, every=0), "every"),
        (lambda m, o: ReDo(m, o, decay_rate=1.0), "decay_rate"),
        (lambda m, o: SelfNormalizedResets(m, o, rejection=1.0), "rejection"),
        (lambda m, o: SelfNormalizedResets(m, o, maturity_threshold=-1), "maturity_threshold"),
    ],
)
def test_bad_arguments(make: Any, what: str) -> None:
    model = network()
    with pytest.raises(InputError, match=what):
        make(model, torch.optim.SGD(model.parameters(), lr=0.1))
