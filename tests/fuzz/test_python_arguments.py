"""Arguments of the public classes and functions that nobody meant: one `InputError`, or it works."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz_help import changed, efforts, hold, scalars, values, works_or_refuses
from hypothesis import strategies as st
from torch import nn

import cbp_ray
from cbp_ray import Adam, AdamW, Distribution, GenerateAndTest, HiddenLayer, OnlineNorm, initialize, results, run_online
from cbp_ray.algorithm import unit_resets, weights
from cbp_ray.experiments.online import iterate_online

odd = st.one_of(
    values,
    st.sampled_from(
        [np.float32(0.5), np.int64(3), np.array(2.0), np.zeros(3), torch.tensor(0.1), torch.zeros(2), 1j, object()]
    ),
    st.sampled_from([int, nn.Linear(2, 2), range(3), (0.9, 0.99), (), b"x"]),
)
"""What may stand in place of an argument."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, method: Any = None, steps: int = 2) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
        if method is not None:
            method.step()


METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "GenerateAndTest": (
        GenerateAndTest,
        {
            "replacement_rate": 0.5,
            "maturity_threshold": 0,
            "decay_rate": 0.9,
            "utility": "overall",
            "preset": "paper",
            "seed": 0,
        }
        | {"replacement": "accumulate", "init": None, "layers": None, "strict": False, "compiled": False},
    ),
    "ReDo": (unit_resets.ReDo, {"threshold": 0.1, "every": 1, "decay_rate": 0.9, "seed": 0, "init": None, "strict": False}),
    "SelfNormalizedResets": (
        unit_resets.SelfNormalizedResets,
        {"rejection": 0.1, "maturity_threshold": 1, "decay_rate": 0.9, "seed": 0, "init": None},
    ),
    "L2Init": (weights.L2Init, {"strength": 0.1}),
    "Wasserstein": (weights.Wasserstein, {"strength": 0.1}),
    "ShrinkAndPerturb": (weights.ShrinkAndPerturb, {"noise": 0.1, "variant": "initial", "shrinkage": 0.1, "seed": 0}),
    "WeightClipping": (weights.WeightClipping, {"factor": 1.0, "last_layer": True, "layers": None}),
    "UPGD": (weights.UPGD, {"noise": 0.1, "decay": 0.9, "protects": True, "seed": 0}),
    "WeightReinitialization": (
        weights.WeightReinitialization,
        {"rate": 0.1, "every": 1, "utility": "gradient", "decay": 0.5, "seed": 0},
    ),
}


@efforts
@pytest.mark.parametrize("name", METHODS)
def test_methods_for_torch_networks(name: str, effort: str) -> None:
    kind, good = METHODS[name]

    def make(arguments: dict[str, Any], wrong: Any = None, place: str = "") -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        parts = {"model": model, "optimizer": optimizer} | ({place: wrong} if place else {})
        method = works_or_refuses(lambda: kind(parts["model"], parts["optimizer"], **arguments))
        if method is not None:
            learn(model, optimizer, method)

    make(good)
    make({name: good[name] for name in ("noise",) if name in good})  # all that is not given is allowed
    names = list(good)

    def check(argument: str, value: Any) -> None:
        make({**good, argument: value})

    def check_parts(place: str, value: Any) -> None:
        make(good, value, place)

    hold(check, effort, 25, argument=st.sampled_from(names), value=odd)
    hold(check_parts, effort, 5, place=st.sampled_from(["model", "optimizer"]), value=odd)


@efforts
@pytest.mark.parametrize("name", METHODS)
def test_states_of_methods(name: str, effort: str) -> None:
    kind, good = METHODS[name]
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    method = kind(model, optimizer, **good)
    learn(model, optimizer, method)
    state = method.state_dict()

    def check(other: Any) -> None:
        works_or_refuses(lambda: method.load_state_dict(other))

    hold(check, effort, 25, other=changed(state) | odd)
    method.load_state_dict(state)
    learn(model, optimizer, method)


ADAM = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "amsgrad": False, "maximize": False}


@efforts
@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_optimizers(kind: Any, effort: str) -> None:
    def check(argument: str, value: Any) -> None:
        model = network()
        arguments = {**ADAM, "fused": False, "foreach": None, "capturable": False, "differentiable": False, argument: value}
        parameters = arguments.pop("params", list(model.parameters()))
        made = works_or_refuses(lambda: kind(parameters, **arguments))
        if made is not None and argument != "params":
            learn(model, made)

    model = network()
    learn(model, kind(model.parameters()))  # all that is not given is allowed
    names = st.sampled_from([*ADAM, "fused", "foreach", "capturable", "differentiable", "params"])
    hold(check, effort, 50, argument=names, value=odd)


@efforts
def test_online_norm(effort: str) -> None:
    good = {"num_features": 3, "alpha_forward": 0.9, "alpha_backward": 0.9, "eps": 1e-5, "affine": True}

    def check(argument: str, value: Any, shape: tuple[int, ...]) -> None:
        norm = works_or_refuses(lambda: OnlineNorm(**{**good, argument: value}))  # type: ignore[arg-type]
        if norm is not None and norm.num_features < 1000:
            works_or_refuses(lambda: norm(torch.ones(shape)).sum())

    shapes = st.sampled_from([(2, 3), (3,), (), (2, 3, 4, 4), (0, 3), (2, 0)])
    hold(check, effort, 50, argument=st.sampled_from(sorted(good)), value=odd, shape=shapes)


CONFIG: dict[str, Any] = {
    "optimizer": {"name": "sgd", "step_size": 0.01},
    "problem": {"name": "bit_flipping", "inputs": 6, "flipping_bits": 3, "flip_period": 5, "target_units": 4},
    "network": {"hidden": [3], "activation": "tanh"},
    "algorithm": {"name": "cbp", "replacement_rate": 0.1, "maturity_threshold": 2},
    "examples": 20,
    "bin_size": 10,
}


@efforts
def test_layers_and_initial_weights(effort: str) -> None:
    def check_layer(argument: str, value: Any) -> None:
        model = network()
        good: dict[str, Any] = {"unit": "0", "outgoing": ("2",), "norms": (), "activation": "relu"}
        layer = works_or_refuses(lambda: HiddenLayer(**{**good, argument: value}))
        if layer is not None:
            works_or_refuses(lambda: GenerateAndTest(model, torch.optim.SGD(model.parameters(), 0.1), layers=[layer]))

    def check_distribution(arguments: list[Any], place: str) -> None:
        model = network()
        made = works_or_refuses(lambda: Distribution(*arguments))
        if made is not None:
            works_or_refuses(
                lambda: GenerateAndTest(model, torch.optim.SGD(model.parameters(), 0.1), init={place: made})  # type: ignore[dict-item]
            )

    def check_initialize(scheme: Any, activation: Any) -> None:
        works_or_refuses(lambda: initialize(network(), scheme, activation=activation))

    hold(check_layer, effort, 20, argument=st.sampled_from(["unit", "outgoing", "norms", "activation"]), value=odd)
    hold(
        check_distribution, effort, 20, arguments=st.lists(odd, min_size=2, max_size=3), place=st.sampled_from(["0", "2", "x"])
    )
    hold(check_initialize, effort, 20, scheme=odd, activation=odd)


@efforts
def test_run_online(effort: str) -> None:
    """All that stands before the first bin: a run itself does what it was asked for, however long that takes."""

    def check(config: Any, seeds: Any, engine: Any, device: Any) -> None:
        works_or_refuses(lambda: iterate_online(config, seeds, engine, device=device))

    small = st.sampled_from([[0, 1]])
    hold(check, effort, 60, config=changed(CONFIG) | odd, seeds=small, engine=st.just("torch"), device=st.just("cpu"))
    hold(check, effort, 30, config=st.just(CONFIG), seeds=odd, engine=st.just("torch"), device=st.just("cpu"))
    hold(check, effort, 20, config=st.just(CONFIG), seeds=small, engine=scalars | odd, device=st.just("cpu"))
    hold(check, effort, 20, config=st.just(CONFIG), seeds=small, engine=st.just("torch"), device=odd)


@efforts
@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_states_of_run_online(engine: Any, effort: str) -> None:
    first = next(iterate_online(CONFIG, [0, 1], engine))
    state = first.checkpoint()
    whole = run_online(CONFIG, [0, 1], engine).error[:, 1:]
    np.testing.assert_array_equal(run_online(CONFIG, [0, 1], engine, state=state).error, whole)

    def check(data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(state)))
        array = state[name]
        other = data.draw(
            st.sampled_from([None, array[None], array.astype(str), np.array(2**62), np.array("x"), array.astype("O"), 1.0, "x"])
        )
        garbled: Any = {**state, name: other}
        if data.draw(st.booleans()):
            del garbled[name]
        works_or_refuses(lambda: run_online(CONFIG, [0, 1], engine, state=garbled))

    hold(check, effort, 20, data=st.data())
    hold(lambda other: works_or_refuses(lambda: run_online(CONFIG, [0], engine, state=other)) and None, effort, 5, other=odd)


@efforts
def test_loading_results(effort: str, tmp_path: Path) -> None:
    def check(storage: Any, sweep: Any) -> None:
        assert works_or_refuses(lambda: results.load(storage, sweep)) is None

    hold(check, effort, 60, storage=st.just(tmp_path) | odd, sweep=odd)
    assert not list(tmp_path.iterdir())


def test_every_public_name_is_fuzzed_or_a_function_of_config() -> None:
    """A class that is added to the public ones belongs into these tests."""
    assert set(cbp_ray.__all__) == {
        *("Adam", "AdamW", "GenerateAndTest", "OnlineNorm", "run_online"),
        *("HiddenLayer", "Distribution", "initialize"),
    }
    assert set(weights.__all__) <= set(METHODS)
