"""The compiled step of `cbp_ray.Adam` is the same as without, to rounding."""

import copy
import functools
import pickle
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbp_ray import Adam
from cbp_ray.compiled import adam as compiled
from rllib_ext.learners.mixin import with_time_steps

fused_adam = functools.partial(Adam, fused=True)
plain_adam = functools.partial(Adam, fused=False)
SHAPES = [(5, 3), (5,), (4, 5), (4,), (1, 4), (1,), (), (2, 3, 2, 2)]


def made(optimizer: Any, dtype: torch.dtype = torch.float32, **settings: Any) -> tuple[Any, list[Tensor]]:
    random = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=random, dtype=dtype)) for shape in SHAPES]
    # The convolution apart: its group goes the way of `cbp_ray.Adam`.
    return optimizer([{"params": params[:-1]}, {"params": params[-1:], "lr": 0.1}], lr=0.01, **settings), params


def train(optimizer: Any, params: list[Tensor], steps: range) -> None:
    for step in steps:
        random = torch.Generator().manual_seed(step)
        for p in params:
            p.grad = torch.randn(p.shape, generator=random, dtype=p.dtype)
        optimizer.step()
        if step % 3 == 2:
            for p in params:
                if p.ndim:
                    optimizer.reset_weights(p, 0, torch.tensor([step % p.shape[0]]))
                if p.ndim > 1:
                    optimizer.reset_weights(p, 1, torch.tensor([step % p.shape[1]]))


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1}, {"betas": (0.0, 0.9)}, {"betas": (0.5, 0.0)}, {"eps": 0.1}])
def test_it_equals_adam_with_per_weight_time_steps(settings: dict[str, Any]) -> None:
    (ours, params), (reference, expected) = made(fused_adam, **settings), made(plain_adam, **settings)
    for optimizer, weights in ((ours, params), (reference, expected)):
        train(optimizer, weights, range(60))
    for value, wanted in zip(params, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=2e-5, atol=2e-6)  # rounding of 60 steps in float32
        assert bool((ours.time_steps(value) == reference.time_steps(wanted)).all())


def test_the_table_of_corrections_grows_with_the_oldest_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, expected = made(fused_adam)
    train(reference, expected, range(40))
    monkeypatch.setattr(compiled, "FEWEST_AGES", 2)
    ours, params = made(fused_adam)
    train(ours, params, range(40))
    assert {table.shape for table in ours._compiled._tables.values()} == {(2, 64)}
    assert all(bool((value == wanted).all()) for value, wanted in zip(params, expected, strict=True))


def test_other_types_go_the_way_of_adam_to_the_last_bit() -> None:
    (ours, params), (reference, expected) = made(fused_adam, torch.float64), made(plain_adam, torch.float64)
    for optimizer, weights in ((ours, params), (reference, expected)):
        train(optimizer, weights, range(20))
    assert all(bool((value == wanted).all()) for value, wanted in zip(params, expected, strict=True))


@pytest.mark.parametrize("through", ["load_state_dict", "deepcopy", "pickle"])
def test_a_split_run_equals_the_unbroken_run(through: str) -> None:
    unbroken, expected = made(fused_adam)
    train(unbroken, expected, range(20))
    first, params = made(fused_adam)
    train(first, params, range(10))
    if through == "load_state_dict":
        resumed, weights = made(fused_adam)
        with torch.no_grad():
            for weight, value in zip(weights, params, strict=True):
                weight.copy_(value)
        resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    else:
        resumed = copy.deepcopy(first) if through == "deepcopy" else pickle.loads(pickle.dumps(first))
        weights = [p for group in resumed.param_groups for p in group["params"]]
    assert resumed.fused
    train(resumed, weights, range(10, 20))
    assert all(bool((value == wanted).all()) for value, wanted in zip(weights, expected, strict=True))


def test_weights_that_moved_are_found_again() -> None:
    (ours, params), (reference, expected) = made(fused_adam), made(fused_adam)
    train(ours, params, range(5))
    train(reference, expected, range(5))
    for p in params:
        p.data = p.data.clone()
    train(ours, params, range(5, 10))
    train(reference, expected, range(5, 10))
    assert all(bool((value == wanted).all()) for value, wanted in zip(params, expected, strict=True))


def test_rllibs_adam_is_exchanged_with_its_settings_and_nothing_else_is() -> None:
    params = [nn.Parameter(torch.ones(3))]
    exchanged = with_time_steps(torch.optim.Adam(params, lr=0.3, eps=1e-7, betas=(0.8, 0.9)), weight_decay=0.5)
    assert isinstance(exchanged, Adam) and exchanged.fused
    group = exchanged.param_groups[0]
    assert (group["lr"], group["eps"], group["betas"], group["weight_decay"]) == (0.3, 1e-7, (0.8, 0.9), 0.5)
    for other in (torch.optim.Adam(params, amsgrad=True), torch.optim.AdamW(params), torch.optim.RMSprop(params)):
        assert with_time_steps(other, weight_decay=0.5) is other
        assert other.param_groups[0]["weight_decay"] == 0.5


def test_the_state_is_the_same_with_and_without() -> None:
    (fused, params), (plain, others) = made(fused_adam), made(plain_adam)
    train(fused, params, range(10))
    plain.load_state_dict(fused.state_dict())
    assert not plain.fused and fused.state_dict()["param_groups"] == plain.state_dict()["param_groups"]
    assert all(bool((fused.time_steps(p) == plain.time_steps(q)).all()) for p, q in zip(params, others, strict=True))


def test_without_numba_it_is_the_plain_step_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cbp_ray.compiled.adam", None)
    (ours, params), (reference, expected) = made(fused_adam), made(plain_adam)
    for optimizer, weights in ((ours, params), (reference, expected)):
        train(optimizer, weights, range(20))
    assert all(bool((value == wanted).all()) for value, wanted in zip(params, expected, strict=True))
