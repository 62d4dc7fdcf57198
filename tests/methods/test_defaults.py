"""A default is said once: public places that name the same setting agree, because they read it from one."""

import inspect

import pytest

from cbp_ray import Adam, GenerateAndTest, OnlineNorm
from cbp_ray.experiments.config import AdamConfig
from cbp_ray.methods import ContinualBackprop, OnlineNormalization
from cbp_ray.problems import BitFlipping, BitFlippingConfig, PermutedMnist, PermutedMnistConfig, SlipperyAntConfig


def arguments(function):
    """Defaults of a function's arguments, by name."""
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in found if p.default is not inspect.Parameter.empty}


def fields(model):
    """Defaults of a model's settings, by name."""
    return {name: field.default for name, field in model.model_fields.items() if not field.is_required()}


def agree(one, other, *, least, renamed=None):
    """Everything that both name has one value; they share at least `least` names."""
    other = {(renamed or {}).get(name, name): value for name, value in other.items()}
    shared = one.keys() & other.keys()
    assert len(shared) >= least, sorted(one.keys() ^ other.keys())
    assert {name: one[name] for name in shared} == {name: other[name] for name in shared}


def test_generate_and_test_and_the_method_of_experiments():
    agree(arguments(GenerateAndTest), fields(ContinualBackprop), least=5)


def test_generate_and_test_and_rllib():
    from rllib_ext import ContinualPPOConfig

    found = arguments(ContinualPPOConfig.continual_backprop)
    assert found.pop("seed") is None  # that of `.debugging(seed=...)`
    agree(arguments(GenerateAndTest), found, least=7)


def test_online_norm_and_its_method():
    agree(arguments(OnlineNorm), fields(OnlineNormalization), least=2)


def test_adam_and_its_config():
    agree(arguments(Adam), fields(AdamConfig), least=2, renamed={"epsilon": "eps"})


def test_streams_and_their_settings():
    assert BitFlipping(0).flip_period == BitFlippingConfig().flip_period
    agree(arguments(PermutedMnist), fields(PermutedMnistConfig), least=2)


def test_continual_ppo_and_slippery_ant():
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    from rllib_ext import ContinualPPOConfig

    config, problem = ContinualPPOConfig(), SlipperyAntConfig()
    ppo = (config.train_batch_size_per_learner, config.num_epochs, config.minibatch_size, config.gamma, config.lambda_)
    assert ppo == (problem.iteration_size, problem.epochs, problem.minibatch_size, problem.discount, problem.gae_lambda)
    assert config.clip_param == problem.clip
    # RLlib's default networks happen to be the paper's.
    network = DefaultModelConfig(**config.model_config)
    assert tuple(network.fcnet_hiddens) == problem.defaults["network"]["hidden"]
    assert network.fcnet_activation == problem.defaults["network"]["activation"]


@pytest.mark.parametrize("name", ["period", "low", "high", "initial"])
def test_friction_and_slippery_ant(name):
    from rllib_ext.ant.environment import SlipperyAnt

    assert getattr(SlipperyAnt().schedule, name) == getattr(SlipperyAntConfig(), f"friction_{name}")
