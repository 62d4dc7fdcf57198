"""Inputs that are signed or normalised, and PyTorch's initial weights, in the MLP kernel: against torch in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from mnist_help import general_engine, make_config, small_images

from cbp_ray.algorithm.input_norm import InputNorm
from cbp_ray.errors import InputError
from cbp_ray.experiments import OnlineConfig, run_online
from cbp_ray.experiments.engines.torch_learner import build_network
from cbp_ray.experiments.engines.torch_permuted_mnist import MnistRun

CBP = {"name": "cbp", "replacement_rate": 0.01, "maturity_threshold": 20}
INPUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "signed": ({"signed": True}, {}),
    "normalised": ({}, {"input_norm": 0.99}),
    "signed-normalised": ({"signed": True}, {"input_norm": 0.9}),
    "pytorch": ({"signed": True}, {"initial_weights": "pytorch"}),
}
METHODS: dict[str, dict[str, Any]] = {
    "bp": {"name": "bp"},
    "cbp": CBP,
    "l2_init": {"name": "l2_init", "strength": 0.01},
    "upgd": {"name": "upgd", "noise": 0.01},
    "swr": {"name": "swr", "rate": 0.05, "every": 20},
    "full_reset": {"name": "full_reset"},
}
OPTIMIZERS = {"sgd": {"name": "sgd", "step_size": 0.01}, "adam": {"name": "adam", "step_size": 0.003}}


def config_of(inputs: str, method: str = "bp", optimizer: str = "sgd") -> OnlineConfig:
    problem, network = INPUTS[inputs]
    made = make_config(METHODS[method], OPTIMIZERS[optimizer], task_length=60)
    update = {"problem": problem, "network": network}
    parts = {name: getattr(made, name).model_copy(update=own) for name, own in update.items()}
    return OnlineConfig.make(made.model_copy(update=parts).model_dump())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("inputs", INPUTS)
def test_kernel_equals_torch(inputs: str, method: str, optimizer: str) -> None:
    config = config_of(inputs, method, optimizer)
    reference, kernel = MnistRun(config, 5, small_images()), general_engine(config, [5])
    for examples in (100, 70):
        ref, comp = reference.advance(examples), kernel.advance(examples)
        for name in ref:
            np.testing.assert_allclose(comp[name][0], ref[name], rtol=1e-8, atol=1e-14, err_msg=name)
    (network,) = kernel.networks()
    for ours, theirs in zip(network.state_dict().values(), reference.model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)


def test_a_run_with_normalised_inputs_goes_on_to_the_last_bit() -> None:
    config = config_of("signed-normalised", "cbp")
    whole, resumed = general_engine(config, [4]), general_engine(config, [4])
    whole.advance(130)
    resumed.load_state(whole.state(), 130)
    ref, comp = whole.advance(100), resumed.advance(100)
    for name in ref:
        np.testing.assert_array_equal(comp[name], ref[name], err_msg=name)


def test_normalised_inputs_are_bounded_and_standard() -> None:
    norm = InputNorm(2, 0.99).double()
    rng = torch.Generator().manual_seed(0)
    quiet = torch.stack([torch.zeros(3000), 5 + 3 * torch.randn(3000, generator=rng)], dim=1).double()
    shown = norm(quiet)[1000:, 1]
    assert abs(float(shown.mean())) < 0.1 and abs(float(shown.std()) - 1) < 0.1
    # An input that was 0 for long lights up.
    assert 5 < float(norm(torch.ones(1, 2).double())[0, 0]) < 10.1
    before = norm.mean.clone()
    norm.eval()(torch.ones(1, 2).double())
    assert torch.equal(norm.mean, before)


def test_initial_weights_of_pytorch() -> None:
    network = build_network(config_of("pytorch"), 0, 25)
    for layer, fan_in in zip((0, 2, 4), (25, 7, 5), strict=True):
        largest = float(network[layer].weight.detach().abs().max())
        assert 0.7 / fan_in**0.5 < largest <= 1 / fan_in**0.5 and not network[layer].bias.any()


def test_what_is_not_asked_for_is_not_in_the_config() -> None:
    plain = make_config(METHODS["bp"]).model_dump()
    assert set(plain["network"]) == {"hidden", "activation"} and "signed" not in plain["problem"]
    asked = config_of("signed-normalised").model_dump()
    assert asked["problem"]["signed"] and asked["network"]["input_norm"] == 0.9


def test_who_does_not_have_them_says_so() -> None:
    settings = {"algorithm": {"name": "bp"}, "optimizer": OPTIMIZERS["sgd"], "network": {"input_norm": 0.9}}
    with pytest.raises(InputError, match=r"input_norm: must be 0 for the kernel of bit_flipping, got 0\.9; use engine: torch"):
        run_online(settings, [0])
