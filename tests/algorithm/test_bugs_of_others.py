"""Bugs that users of other implementations have reported, each as a test that ours does not have it."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cbp_ray import Adam, GenerateAndTest, initialize
from cbp_ray.algorithm.unit_resets import ReDo, SelfNormalizedResets
from cbp_ray.algorithm.weights import ShrinkAndPerturb, WeightReinitialization


def network(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    initialize(model, "kaiming", activation="relu")
    return model


def learn(model: nn.Sequential, optimizer: torch.optim.Optimizer, method: Any, steps: int, seed: int = 0) -> list[Any]:
    """Trains, and returns the method's reports."""
    generator, reports = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        x = torch.rand(4, model[0].in_features, generator=generator)  # type: ignore[arg-type]
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        reports.append(method.step())
    return reports


def test_a_new_unit_is_not_replaced_for_being_new() -> None:
    """By the raw running average, the newest mature unit would be the least useful one again and again."""
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight.fill_(1.0)  # type: ignore[union-attr, operator]
        model[0].bias.fill_(1.0)  # type: ignore[union-attr, operator]
        model[2].weight.copy_(torch.tensor([[1.0, 2.0]]))  # type: ignore[union-attr, operator]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = {"replacement_rate": 0.01, "maturity_threshold": 10, "decay_rate": 0.99}
    gnt = GenerateAndTest(model, optimizer, **settings, utility="contribution")  # type: ignore[arg-type]
    replaced: list[int] = []
    for _ in range(60):
        model(torch.ones(1, 1)).sum().backward()
        replaced += gnt.step().replaced.get("0", [])
    # Unit 0 is of less use, until it is replaced; its successor has no outgoing weight, and rightly is the next to go.
    assert replaced[0] == 0
    with torch.no_grad():
        model[2].weight.copy_(torch.tensor([[9.0, 2.0]]))  # type: ignore[union-attr, operator]
        model[0].weight.fill_(1.0)  # type: ignore[union-attr, operator]
        model[0].bias.fill_(1.0)  # type: ignore[union-attr, operator]
    replaced.clear()
    while not replaced:
        model(torch.ones(1, 1)).sum().backward()
        replaced += gnt.step().replaced.get("0", [])
    # Unit 0 is the younger one, with the smaller raw average, and of more use.
    assert replaced == [1]


def test_no_debt_builds_up_before_the_first_unit_is_mature() -> None:
    model = network(3, 20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gnt = GenerateAndTest(model, optimizer, replacement_rate=0.05, maturity_threshold=50)
    counts = [len(report.replaced.get("0", [])) for report in learn(model, optimizer, gnt, 54)]
    assert sum(counts[:50]) == 0
    # One unit a step is due, and not the fifty of the steps before.
    assert max(counts[50:]) == 1 and sum(counts[50:]) == 4


METHODS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], Any]] = {
    "cbp": lambda model, optimizer: GenerateAndTest(model, optimizer, replacement_rate=0.2, maturity_threshold=2),
    "redo": lambda model, optimizer: ReDo(model, optimizer, threshold=0.9, every=3),
    "snr": lambda model, optimizer: SelfNormalizedResets(model, optimizer, 0.5, 2, 0.9),
    "swr": lambda model, optimizer: WeightReinitialization(model, optimizer, rate=0.2, every=3),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_optimizer_holds_what_the_network_computes_with(name: str) -> None:
    model = network(3, 12, 12, 1)
    optimizer = Adam(model.parameters(), lr=1e-3)
    method = METHODS[name](model, optimizer)
    before = [id(parameter) for parameter in model.parameters()]
    learn(model, optimizer, method, 12)
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert [id(parameter) for parameter in model.parameters()] == before == held


@pytest.mark.parametrize("name", ["cbp", "redo"])
def test_the_columns_behind_a_new_unit_are_zero_and_no_others(name: str) -> None:
    model = network(3, 8, 8, 8, 1)
    optimizer = Adam(model.parameters(), lr=1e-3)
    method = METHODS[name](model, optimizer)
    linears = [module for module in model if isinstance(module, nn.Linear)]
    for linear in linears:
        nn.init.constant_(linear.bias, 0.1)
    report = learn(model, optimizer, method, 3)[-1]
    names = [str(number) for number, module in enumerate(model) if isinstance(module, nn.Linear)]
    assert report.replaced
    for layer, (own, behind) in enumerate(itertools.pairwise(linears)):
        new = set(report.replaced.get(names[layer], []))
        # Rows of units behind that are new themselves are drawn anew as a whole, but do not read new units of this layer.
        zero = {unit for unit in range(8) if not behind.weight[:, unit].any()}
        new_behind = report.replaced.get(names[layer + 1], []) if behind is not linears[-1] else []
        kept = [row for row in range(behind.out_features) if row not in new_behind]
        assert all(not behind.weight[kept, unit].any() for unit in new)
        assert zero <= new
        assert not own.bias[list(new)].any()
        old = [unit for unit in range(8) if unit not in new]
        assert own.bias[old].all()


def test_a_new_units_optimizer_state_is_new_also_its_time_step() -> None:
    model = network(3, 8, 1)
    optimizer = Adam(model.parameters(), lr=1e-3)
    gnt = METHODS["cbp"](model, optimizer)
    (new,) = [report.replaced["0"] for report in learn(model, optimizer, gnt, 3) if report.replaced]
    old = [unit for unit in range(8) if unit not in new]
    for linear, at in ((model[0], 0), (model[2], 1)):
        weight: Any = linear.weight
        for moment in ("exp_avg", "exp_avg_sq"):
            assert not optimizer.state[weight][moment].index_select(at, torch.tensor(new)).any()
        steps = optimizer.time_steps(weight).expand_as(weight)
        assert steps.index_select(at, torch.tensor(new)).eq(0).all()
        assert steps.index_select(at, torch.tensor(old)).eq(3).all()


def test_a_random_perturbation_has_no_target() -> None:
    """It pulls towards a new draw in every step, and not towards a stored copy of the first weights."""
    model = network(3, 200, 1)
    weight: Any = model[0].weight
    first = weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = ShrinkAndPerturb(model, optimizer, noise=0.5, shrinkage=0.5, variant="initial")
    targets = []
    for _ in range(2):
        before = weight.detach().clone()
        learn(model, optimizer, method, 1)
        targets.append((weight.detach() - 0.5 * before).flatten())
    stack = torch.stack([*targets, first.flatten()])
    assert torch.corrcoef(stack).fill_diagonal_(0).abs().max() < 0.15
