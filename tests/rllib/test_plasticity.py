"""`.plasticity(...)`: every method of experiments inside RLlib's learner, against the same method beside hand-written PPO."""

import copy
from typing import Any

import pytest
import torch
from long_tests import first
from rllib_help import MODULE, SPACES, UPDATE, assert_same, config, episodes, mini_batch, parameters
from test_rllib_learner import PlainPPO, _float64  # noqa: F401  # a fixture
from torch.nn import Module

from cbp_ray import Adam
from cbp_ray.errors import InputError
from cbp_ray.experiments import OnlineConfig
from cbp_ray.methods import OWN, methods
from rllib_ext import ContinualPPOConfig
from rllib_ext.engine import algorithm_config
from rllib_ext.learners.mixin import RESULTS
from rllib_ext.learners.topology import treatable_layers

RIVALS: dict[str, dict[str, Any]] = {
    "upgd": {"noise": 0.3, "decay_rate": 0.9},
    "redo": {"threshold": 0.8, "every": 4, "decay_rate": 0.9},
    "swr": {"rate": 0.1, "every": 3, "decay_rate": 0.5},
    "snr_geometric": {"rejection": 0.3, "maturity_threshold": 3, "decay_rate": 0.9},
    "l2_init": {"strength": 0.5},
    "wasserstein": {"strength": 0.5},
    "shrink_perturb": {"noise": 0.01},
    "clipping": {"factor": 0.7},
}


def made(rival: str) -> ContinualPPOConfig:
    own = config().rl_module(model_config={"fcnet_hiddens": [16, 16], "fcnet_activation": "relu"})
    return own.plasticity(rival, **RIVALS[rival]).training(lr=1e-2)


def test_all_rivals_are_here() -> None:
    names = {str(method.model_fields["name"].default) for method in OWN if method.ppo_label}
    assert names == {*RIVALS, "bp", "l2", "cbp"}


class Whole(PlainPPO):
    """Hand-written PPO on a copy of the learner's module, whose parameters keep their order."""

    def __init__(self, learner: Any) -> None:
        Module.__init__(self)
        module = self.module = copy.deepcopy(learner.module[MODULE])
        self.policy_layers = [*module.encoder.actor_encoder.net.mlp, *module.pi.net.mlp]
        self.value_layers = [*module.encoder.critic_encoder.net.mlp, *module.vf.net.mlp]
        self.log_std = module.pi.log_std

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = value = x
        for layer in self.policy_layers:
            mean = layer(mean)
        for layer in self.value_layers:
            value = layer(value)
        return mean, value


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("rival", RIVALS)
def test_the_learner_equals_a_hand_written_ppo_with_the_method(rival: str) -> None:
    learner = made(rival).training(weight_decay=1e-3).build_learner(spaces=SPACES)
    plain = Whole(learner)
    optimizer = Adam(plain.module.parameters(), lr=1e-2, weight_decay=1e-3)
    method = methods()[rival](name=rival, **RIVALS[rival])
    acts: Any = method.after_step(plain.module, optimizer, 3, treatable_layers(MODULE, plain.module))
    begun = parameters(learner)
    for step in range(25):
        batch = mini_batch(step, dtype=torch.float64)
        learner._update(batch)
        optimizer.zero_grad()
        plain.loss(batch[MODULE]).backward()
        optimizer.step()
        acts.step()
    ours = parameters(learner)
    for name, value in plain.module.state_dict().items():
        torch.testing.assert_close(ours[name], value, rtol=1e-7, atol=1e-9)
    assert any((ours[name] != begun[name]).any() for name in ours)
    counts = getattr(acts, "replaced", None)
    assert counts is None or sum(counts.values()) > 3


@pytest.mark.parametrize("rival", first(3, RIVALS))
def test_a_learner_goes_on_to_the_last_bit(rival: str) -> None:
    whole = made(rival).build_learner(spaces=SPACES)
    whole.update(episodes=episodes(0), **UPDATE)
    saved = copy.deepcopy(whole.get_state())
    whole.update(episodes=episodes(1), **UPDATE)
    resumed = made(rival).build_learner(spaces=SPACES)
    resumed.set_state(saved)
    resumed.update(episodes=episodes(1), **UPDATE)
    assert_same(parameters(resumed), parameters(whole))


def test_what_a_method_did_is_reported() -> None:
    learner = made("swr").build_learner(spaces=SPACES)
    result = learner.update(episodes=episodes(0), **UPDATE)[MODULE][RESULTS]
    assert float(result["replaced"].peek()) > 10


def test_networks_with_layer_norm_and_equal_betas_learn() -> None:
    own = config().rl_module(model_config={"fcnet_hiddens": [16, 16], "fcnet_use_layernorm": True})
    own = own.plasticity("redo", threshold=0.9, every=2).training(betas=(0.99, 0.99))
    learner = own.build_learner(spaces=SPACES)
    learner.update(episodes=episodes(0), **UPDATE)
    assert {group["betas"] for _, o in learner.get_optimizers_for_module(MODULE) for group in o.param_groups} == {(0.99, 0.99)}
    assert sum(learner._gnts[MODULE].replaced.values()) > 0


def test_experiments_say_it_in_rllibs_terms() -> None:
    settings = {
        "problem": {"name": "slippery_ant"},
        "network": {"layer_norm": True},
        "algorithm": {"name": "redo", "threshold": 0.1, "weight_decay": 1e-4},
        "optimizer": {"name": "adam", "step_size": 1e-4, "betas": (0.99, 0.99)},
    }
    said = algorithm_config(OnlineConfig.make(settings), 0)
    assert said.plasticity_settings == {"name": "redo", "seed": None, "threshold": 0.1, "every": 1000, "decay_rate": 0.99}
    assert (said.weight_decay, said.betas) == (1e-4, (0.99, 0.99))
    assert said.model_config["fcnet_use_layernorm"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.plasticity("reddo", threshold=0.1), "did you mean 'redo'"),
        (lambda c: c.plasticity("redo"), "threshold"),
        (lambda c: c.plasticity("redo", threshold=-1), "threshold"),
        (lambda c: c.plasticity("redo", treshold=0.1), "did you mean 'threshold'"),
        (lambda c: c.plasticity("online_norm"), "RLlib's learners have"),
        (lambda c: c.plasticity("redo", threshold=0.1, weight_decay=1e-3), "training(weight_decay"),
        (lambda c: c.training(betas=(0.9, 1.0)), "betas"),
        (lambda c: c.training(betas=0.99), "betas"),
        (lambda c: c.plasticity("cbp", weight_decay=1e-3), "training(weight_decay"),
        (lambda c: c.plasticity("cbp", replacment_rate=1e-3), "did you mean 'replacement_rate'"),
        (lambda c: c.plasticity("l2_init", strength=0.1, seed=-1), "seed"),
    ],
)
def test_bad_calls_are_named(call: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        call(ContinualPPOConfig().environment("Pendulum-v1")).validate()
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_what_rllib_has_is_said() -> None:
    with pytest.raises(InputError) as caught:
        ContinualPPOConfig().plasticity("linear").plasticity_method()
    assert "redo" in str(caught.value) and "full_reset" not in str(caught.value)


def test_another_methods_checkpoint_is_refused_in_one_line() -> None:
    saved = made("upgd").build_learner(spaces=SPACES).get_state()
    with pytest.raises(InputError, match="the checkpoint is of UPGD, and the config says L2Init"):
        made("l2_init").build_learner(spaces=SPACES).set_state(saved)


def test_a_network_without_hidden_layers_may_be_regularised() -> None:
    own = ContinualPPOConfig().environment("Pendulum-v1").rl_module(model_config={"fcnet_hiddens": []})
    own.plasticity("l2_init", strength=0.1).validate()
    with pytest.raises(InputError, match="no units to replace"):
        own.plasticity("redo", threshold=0.1).validate()


def test_the_last_call_counts() -> None:
    own = ContinualPPOConfig().continual_backprop(replacement_rate=1e-3).plasticity("l2_init", strength=0.1)
    assert own.continual_backprop_settings is None
    own.plasticity("cbp", replacement_rate=1e-3)
    assert own.plasticity_settings is None and own.continual_backprop_settings["replacement_rate"] == 1e-3
    assert ContinualPPOConfig().plasticity("bp").plasticity_method() is None
