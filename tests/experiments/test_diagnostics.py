"""Metrics on request: the same from every engine, right against definitions written out, and nothing else changes by them."""

import numpy as np
import pytest
import torch
from mnist_help import general_engine, make_config, small_images
from torch import nn

from cbp_ray import run_online
from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.diagnostics import Diagnostics, describe_hessian, describe_network
from cbp_ray.experiments.engines import lane_bit_flipping
from cbp_ray.experiments.engines.torch_learner import TorchRuns
from cbp_ray.experiments.engines.torch_permuted_mnist import MnistRun, StackedRuns
from cbp_ray.experiments.online import iterate_online
from cbp_ray.kernels.lane_step import unspecialised_learner
from cbp_ray.problems import BitFlipping
from cbp_ray.results.keys import config_key

CBP = {"name": "cbp", "replacement_rate": 0.01, "maturity_threshold": 20}
METHODS = {
    "bp": ({"name": "bp"}, {}),
    "cbp": (CBP, {}),
    "layer-norm": (CBP, {"layer_norm": True}),
    "online-norm": ({"name": "online_norm"}, {}),
    "upgd": ({"name": "upgd", "noise": 0.01}, {}),
    "linear": ({"name": "linear"}, {}),
}


@pytest.fixture(autouse=True)
def general_kernel(monkeypatch):
    monkeypatch.setattr(lane_bit_flipping, "specialised_learner", lambda _: unspecialised_learner())


def settings(method="bp", activation="tanh", diagnostics=True, **changes):
    algorithm, network = METHODS[method]
    return {
        "problem": {"flip_period": 50},
        "network": {"activation": activation, **network},
        "algorithm": algorithm,
        "optimizer": {"name": "sgd", "step_size": 0.01},
        "examples": 300,
        "bin_size": 100,
        "dtype": "float64",
        "diagnostics": diagnostics,
        **changes,
    }


@pytest.mark.parametrize("method", METHODS)
def test_kernel_and_torch_agree(method):
    activation = "relu" if method in ("bp", "cbp") else "tanh"
    kernel, reference = (run_online(settings(method, activation), range(3), engine) for engine in ("kernel", "torch"))
    assert list(kernel.metrics) == list(reference.metrics)
    for name in kernel.metrics:
        np.testing.assert_allclose(kernel[name], reference[name], rtol=1e-7, atol=1e-12, err_msg=name)
    if method == "online-norm":
        assert np.isnan(kernel["sample_plasticity"]).all()
    else:
        assert kernel["sample_plasticity"].min() > 0 and kernel["sample_plasticity"].max() < 1


@pytest.mark.parametrize("method", ["cbp", "layer-norm"])
def test_engines_of_permuted_mnist_agree(method):
    algorithm, network = METHODS[method]
    config = make_config(algorithm, examples=200, bin_size=100, diagnostics=True)
    config = config.model_copy(update={"network": config.network.model_copy(update=network)})
    seeds, images = (0, 1), small_images()
    streams = [config.problem.stream(seed, images) for seed in seeds]
    engines = [
        general_engine(config, seeds, images),
        TorchRuns(config, lambda seed: MnistRun(config, seed, images), seeds),
        *([StackedRuns(config, seeds, images=images)] if not network else []),
    ]
    found = []
    for engine in engines:
        diagnostics = Diagnostics(config, seeds, engine, streams)
        found.append([{**engine.advance(100), **diagnostics.measure(seen)} for seen in (100, 200)])
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert set(one) >= set(config.metrics)
            for name in config.metrics:
                np.testing.assert_allclose(one[name], same[name], rtol=1e-7, atol=1e-12, err_msg=name)
    assert 0 < found[0][0]["sample_plasticity"].min() < 1 and found[0][1]["weight_change"].min() > 0


def test_nothing_else_changes_and_keys_without_them_stay():
    asked, plain = run_online(settings("cbp"), range(2)), run_online(settings("cbp", diagnostics=False), range(2))
    for name in plain.metrics:
        np.testing.assert_array_equal(asked[name], plain[name])
    with_it, without = OnlineConfig.make(settings()), OnlineConfig.make(settings(diagnostics=False))
    assert "diagnostics" not in without.model_dump() and config_key(with_it, "kernel") != config_key(without, "kernel")


def test_one_run_alone_and_resumed_is_the_same_to_the_last_bit():
    whole = run_online(settings("cbp"), range(3))
    alone = run_online(settings("cbp"), [2])
    first = next(iter(iterate_online(settings("cbp"), [2])))
    rest = run_online(settings("cbp"), [2], state=first.checkpoint())
    for name in whole.metrics:
        np.testing.assert_array_equal(whole[name][2:], alone[name])
        np.testing.assert_array_equal(alone[name][:, 1:], rest[name])


def test_sample_plasticity_is_the_part_of_the_loss_that_a_step_removes():
    # With one linear layer and SGD, an error e becomes e (1 - 2 α (|x|² + 1)).
    curves = run_online(settings("linear", optimizer={"name": "sgd", "step_size": 1e-4}, examples=1, bin_size=1), [5])
    x, _ = BitFlipping(5, flip_period=50).take(1)
    left = 1 - 2e-4 * (x.sum() + 1)
    assert curves["sample_plasticity"][0, 0] == pytest.approx(1 - left**2, rel=1e-9)


def test_the_probe_of_bit_flipping_has_every_input_of_the_coming_epoch():
    problem = BitFlipping(3, flip_period=50)
    x, y = problem.probe(100)
    assert len(np.unique(x, axis=0)) == 32
    shown, targets = problem.take(50, start=100)
    for one, target in zip(shown, targets, strict=True):
        (row,) = np.flatnonzero((x == one).all(1))
        assert y[row] == target
    assert problem.probe(100)[0].tolist() != problem.probe(150)[0].tolist()
    assert len(BitFlipping(3, inputs=20, flipping_bits=5).probe(0)[0]) == 1024


def test_dormant_and_inactive_units_by_their_definition():
    network = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, 0], [0, 1], [0.02, 0], [-1, -1]]))
        network[0].bias.zero_()
        network[2].weight.copy_(torch.tensor([[1.0, 0.001, 1, 1]]))
        network[2].bias.zero_()
    x = torch.rand(50, 2, dtype=torch.float64)
    found = describe_network(network, x, torch.zeros(50, dtype=torch.float64))
    # The mean |h| is near 0.25: the third unit has 0.04 of it, the fourth gives 0.
    assert [found[f"dormant_{tau}_1"] for tau in ("0", "0.025", "0.1")] == [0.25, 0.25, 0.5]
    # δ of the second unit is a thousandth of that of the others, and the fourth has none.
    assert [found[f"inactive_{tau}_1"] for tau in ("0", "0.01", "0.1")] == [0.25, 0.5, 0.5]
    sigma = np.linalg.svd(network[1](network[0](x)).detach().numpy(), compute_uv=False)
    assert found["srank_1"] == 1 + np.argmax(np.cumsum(sigma) / sigma.sum() >= 0.99)


def test_the_hessian_is_that_of_the_mean_loss():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    flat = torch.cat([p.detach().flatten() for p in network.parameters()])

    def gradient(values):
        torch.nn.utils.vector_to_parameters(values, network.parameters())
        loss = (network(x)[:, 0] - y).square().mean()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, tuple(network.parameters()))])

    step = 1e-5
    rows = [(gradient(flat + step * e) - gradient(flat - step * e)) / (2 * step) for e in torch.eye(len(flat)).double()]
    gradient(flat)
    sizes = np.abs(np.linalg.eigvalsh(torch.stack(rows).numpy()))
    share = sizes / sizes.sum()
    found = describe_hessian(network, x, y)
    assert found["hessian_rank"] == len(flat)
    assert found["hessian_effective_rank"] == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-5)
    # A linear network on three examples: J Jᵀ has rank 3.
    linear = nn.Sequential(nn.Linear(5, 1)).double()
    assert describe_hessian(linear, x[:3].repeat(1, 2)[:, :5], y[:3])["hessian_rank"] == 3


def test_a_diverged_network_has_no_rank():
    network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        network[2].weight.fill_(float("nan"))
    x, y = torch.ones(3, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    assert np.isnan(describe_hessian(network, x, y)["hessian_rank"])


def test_slippery_ant_has_its_own():
    with pytest.raises(InputError, match="diagnostics: must be false for slippery_ant"):
        OnlineConfig.make(
            {
                "problem": {"name": "slippery_ant"},
                "algorithm": {"name": "bp"},
                "optimizer": {"name": "adam", "step_size": 1e-4},
                "diagnostics": True,
            }
        )
