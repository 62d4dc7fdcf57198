"""ContinualPPOConfig: the paper's settings by default, and one clear error for each setting that can't be."""

import math
import pickle
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo.ppo import PPO
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.tune.registry import register_env
from rllib_help import ACTIONS, MODULE, OBSERVATIONS, SPACES, config, mini_batch, parameters
from torch import Tensor, nn

from cbp_ray.algorithm import Distribution, GenerateAndTest, HiddenLayer
from cbp_ray.errors import InputError
from cbp_ray.methods import ContinualBackprop
from rllib_ext import ContinualPPOConfig, algorithms
from rllib_ext.algorithms import ContinualDQNConfig, ContinualSACConfig
from rllib_ext.config import TRIES, ContinualPPO
from rllib_ext.learners.diagnostics import of_activations
from rllib_ext.learners.targets import Targets
from rllib_ext.learners.topology import hidden_layers


class Linear(TorchRLModule, ValueFunctionAPI):
    """A module of somebody's own, without a hidden layer."""

    def setup(self) -> None:
        self.policy, self.value = nn.Linear(4, 4), nn.Linear(4, 1)

    def _forward(self, batch: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(batch[Columns.OBS])}

    def compute_values(self, batch: dict[str, Tensor], embeddings: Any = None) -> Tensor:
        return self.value(batch[Columns.OBS])[:, 0]


class OwnNames(Linear):
    """One that says which layers it has."""

    def setup(self) -> None:
        super().setup()
        self.policy = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def continual_backprop_layers(self) -> list[HiddenLayer]:
        return [HiddenLayer("policy.0", ("policy.2",), activation="relu")]


def built(made: Any) -> Any:
    return made.environment("Pendulum-v1").env_runners(num_env_runners=0).build_algo()


def test_the_defaults_are_the_papers() -> None:
    made = ContinualPPOConfig()
    assert (made.train_batch_size_per_learner, made.num_epochs, made.minibatch_size) == (4096, 10, 128)
    assert (made.gamma, made.lambda_, made.clip_param, made.lr) == (0.99, 0.95, 0.2, 1e-4)
    assert (made.use_kl_loss, made.entropy_coeff, made.vf_clip_param, made.grad_clip) == (False, 0.0, float("inf"), None)
    assert made._env_to_module_connector is None and made.observation_filter == "NoFilter"
    learner = made.build_learner(spaces=SPACES)
    assert learner._named_optimizers[f"{MODULE}_default_optimizer"].defaults["betas"] == (0.9, 0.999)
    assert not learner._gnts  # generate-and-test is for those who ask


def test_defaults_of_generate_and_test_are_the_same_everywhere() -> None:
    call = {
        name: p.default for name, p in signature(ContinualPPOConfig.continual_backprop).parameters.items() if name != "self"
    }
    gnt = {name: p.default for name, p in signature(GenerateAndTest).parameters.items()}
    assert call == {name: gnt[name] for name in call} | {"seed": None}
    model = {name: field.default for name, field in ContinualBackprop.model_fields.items() if not field.is_required()}
    assert {name: model[name] for name in model.keys() & call.keys()} == {
        name: call[name] for name in model.keys() & call.keys()
    }


@pytest.mark.parametrize("kind", ["APPO", "IMPALA", "SAC", "DQN"])
def test_the_classes_of_an_algorithm_have_names_docstrings_and_pickles(kind: str) -> None:
    for name in (f"Continual{kind}", f"Continual{kind}Config", f"Continual{kind}TorchLearner"):
        made = getattr(algorithms, name)
        assert pickle.loads(pickle.dumps(made)) is made and made.__qualname__ == name and made.__doc__
    made = getattr(algorithms, f"Continual{kind}Config")()
    assert made.algo_class is getattr(algorithms, f"Continual{kind}") and type(made.algo_class.get_default_config()) is type(
        made
    )
    assert made.get_default_learner_class() is getattr(algorithms, f"Continual{kind}TorchLearner")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: config(replacement_rate=1.5), [".continual_backprop(", "replacement_rate", "[0, 1]", "1.5"]),
        (lambda: config(replacement_rate=-0.1), [".continual_backprop(", "replacement_rate", "-0.1"]),
        (lambda: config(maturity_threshold=2.5), [".continual_backprop(", "maturity_threshold", "2.5"]),
        (lambda: config(utility="best"), [".continual_backprop(", "utility", "'best'", "overall"]),
        (lambda: config(preset="nature"), [".continual_backprop(", "preset", "nature2024"]),
        (lambda: config(decay_rate=1.0), [".continual_backprop(", "decay_rate"]),
        (lambda: config(replacement="never"), [".continual_backprop(", "replacement", "bernoulli"]),
        (lambda: ContinualPPOConfig().continual_backprop(seed=-1), [".continual_backprop(", "seed", "-1"]),
        (lambda: ContinualPPOConfig().continual_backprop(seed=[]), [".continual_backprop(", "seed", "[]"]),
        (lambda: config(init="x"), [".continual_backprop(", "init", "kaiming", "'x'"]),
        (lambda: config(init=5), [".continual_backprop(", "init", "5"]),
        (lambda: config(init={"0": 1.0}), [".continual_backprop(", "init", "Distribution"]),
        (lambda: config().training(weight_decay=math.inf), [".training(weight_decay=", "inf"]),
        (lambda: config().training(weight_decay=-1.0), [".training(weight_decay=", "-1.0"]),
        (lambda: config().training(weight_decay="1e-4"), [".training(weight_decay=", "'1e-4'"]),
        (lambda: config().framework("tf2"), ['.framework("tf2")', 'call .framework("torch")']),
        (
            lambda: config().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False),
            [".api_stack(", "enable_rl_module_and_learner=True"],
        ),
        (lambda: config(sizes=(), replacement_rate=0.1), [".rl_module(model_config=", "fcnet_hiddens", "hidden layer"]),
        (
            lambda: config(replacement_rate=0.1).rl_module(rl_module_spec=RLModuleSpec(model_config={"fcnet_hiddens": []})),
            [".rl_module(model_config=", "fcnet_hiddens", "hidden layer"],
        ),
    ],
)
def test_a_setting_that_cannot_be_gives_one_line_that_quotes_the_call(made: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        built(made())
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_settings_are_checked_per_module_too() -> None:
    made = config().multi_agent(
        policies={"a", "b"},
        algorithm_config_overrides_per_module={
            "b": ContinualPPOConfig.overrides(
                continual_backprop_settings=ContinualPPOConfig()
                .continual_backprop(replacement_rate=2.0)
                .continual_backprop_settings
            )
        },
    )
    with pytest.raises(InputError, match="replacement_rate"):
        built(made)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (RLModuleSpec(module_class=Linear), ["Linear", "continual_backprop_layers()"]),
        (RLModuleSpec(model_config={"use_lstm": True}), ["recurrent"]),
    ],
)
def test_a_module_that_cannot_be_treated_is_refused_by_name(spec: RLModuleSpec, words: list[str]) -> None:
    made = config(replacement_rate=0.1).rl_module(rl_module_spec=spec)
    with pytest.raises(InputError) as caught:
        made.build_learner(spaces=SPACES)
    for word in [".continual_backprop(", f"'{MODULE}'", *words]:
        assert word in str(caught.value)
    # The same on the driver, when learners are actors.
    with pytest.raises(InputError, match="can't treat"):
        made.learners(num_learners=2).build_learner_group(spaces=SPACES)


@pytest.mark.parametrize(
    ("name", "fix"), [("SliperyAnt-v0", "did you mean 'SlipperyAnt-v0'?"), ("nonsense", "register it first")]
)
def test_an_environment_that_nobody_knows_is_named(name: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        ContinualPPOConfig().environment(name).validate()
    assert str(caught.value).endswith(fix) and str(caught.value).startswith(f".environment({name!r}): ")


@pytest.mark.parametrize("name", [":x", ".:x", "..:x", "a:b:c", "ale_py:", "package.:X-v1", "a b:X-v1", "gymnasium:X v1"])
def test_an_environment_with_a_colon_must_have_one_module_and_one_name(name: str) -> None:
    with pytest.raises(InputError) as caught:
        ContinualPPOConfig().environment(name).validate()
    assert str(caught.value) == (f".environment({name!r}): must be MODULE:NAME, got another form; use 'package.module:Name-v0'")


def test_a_module_of_an_environment_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unwilling").mkdir()
    (tmp_path / "unwilling" / "__init__.py").write_text("raise SystemExit('no licence')")
    monkeypatch.syspath_prepend(tmp_path)
    for module, why in (
        ("nomod", ""),
        ("gymnasium.nomod", ""),
        ("nomod.inner", "No module"),
        ("unwilling.inner", "no licence"),
    ):
        with pytest.raises(InputError, match=rf"module {module} must be there, got none.*{why}.*; install it") as caught:
            ContinualPPOConfig().environment(f"{module}:X-v1").validate()
        assert "\n" not in str(caught.value)


def test_an_environment_may_name_the_module_that_registers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registering.py").write_text("raise AssertionError('a config only looks whether it is there')")
    monkeypatch.syspath_prepend(tmp_path)
    register_env("a:b:c of Tune", lambda _: gym.make("CartPole-v1"))
    for name in ("registering:Made-v0", "gymnasium:CartPole-v1", "gymnasium.envs:CartPole", "__main__:X-v1", "a:b:c of Tune"):
        ContinualPPOConfig().environment(name).validate()


class Lost:
    """Env runners that are all gone for ever."""

    def num_remote_env_runners(self) -> int:
        return 2

    def num_healthy_remote_workers(self) -> int:
        return 0

    def probe_unhealthy_env_runners(self) -> list[int]:
        return []


def without_runners(monkeypatch: pytest.MonkeyPatch, restarts: bool = True) -> ContinualPPO:
    """An algorithm that needs no Ray: it has a config and runners that are gone, and its steps sample nothing."""
    made = ContinualPPO.__new__(ContinualPPO)
    made.config = ContinualPPOConfig().fault_tolerance(restart_failed_env_runners=restarts, ignore_env_runner_failures=True)
    made.env_runner_group, made.metrics = Lost(), MetricsLogger()
    monkeypatch.setattr(PPO, "training_step", lambda self: None)
    return made


@pytest.mark.parametrize("restarts", [True, False])
def test_runners_are_waited_for_only_if_they_are_started_again(restarts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr("rllib_ext.config.RESTART_SECONDS", 0.05)
    monkeypatch.setattr("time.sleep", naps.append)
    made = without_runners(monkeypatch, restarts)
    assert made.restore_env_runners(made.env_runner_group) == []
    assert bool(naps) == restarts


def test_a_caller_that_goes_on_after_too_many_steps_without_samples_is_told_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made = without_runners(monkeypatch)
    for _ in range(TRIES - 1):
        made.training_step()
    for missed in (TRIES, TRIES + 1, TRIES + 2):
        with pytest.raises(RuntimeError, match=f"^{missed} times in a row, no environment runner"):
            made.training_step()


def test_an_environment_may_be_registered_or_have_no_version() -> None:
    register_env("made-up", lambda _: gym.make("CartPole-v1"))
    for name in ("made-up", "CartPole", "CartPole-v1", "SlipperyAnt-v0"):
        ContinualPPOConfig().environment(name).validate()


def test_without_generate_and_test_any_module_will_do() -> None:
    learner = config().rl_module(rl_module_spec=RLModuleSpec(module_class=Linear)).build_learner(spaces=SPACES)
    learner._update(mini_batch(0))


def test_a_module_may_name_its_layers_itself() -> None:
    made = config(replacement_rate=0.1, maturity_threshold=0)
    learner = made.rl_module(rl_module_spec=RLModuleSpec(module_class=OwnNames)).build_learner(spaces=SPACES)
    for step in range(3):
        learner._update(mini_batch(step))
    assert learner._gnts[MODULE].layers == ["policy.0"] and learner._gnts[MODULE].replaced["policy.0"] > 0


def module(model_config: dict[str, Any], actions: gym.Space = ACTIONS) -> Any:
    made = ContinualPPOConfig().rl_module(model_config=model_config)
    return made.get_multi_rl_module_spec(spaces={MODULE: (OBSERVATIONS, actions)}).build()[MODULE]


def test_the_papers_networks() -> None:
    net = module({})
    linear = {name: m for name, m in net.named_modules() if isinstance(m, nn.Linear)}
    shapes = [tuple(m.weight.shape) for m in linear.values()]
    assert sorted(shapes) == sorted([(256, 4), (256, 256), (2, 256), (256, 4), (256, 256), (1, 256)])
    for m in linear.values():
        bound = (3 / m.in_features) ** 0.5
        assert 0.95 * bound < float(m.weight.detach().abs().max()) <= bound and not m.bias.any()
    assert isinstance(net.pi.log_std, nn.Parameter) and not net.pi.log_std.any()
    out = net.forward_train({Columns.OBS: torch.randn(3, 4)})[Columns.ACTION_DIST_INPUTS]
    assert out.shape == (3, 4) and not out[:, 2:].any()
    assert all(layer.activation == "tanh" for layer in hidden_layers(net))


def test_other_sizes_activations_and_a_shared_encoder() -> None:
    net = module({"fcnet_hiddens": [8, 6, 4], "fcnet_activation": "relu", "vf_share_layers": True, "fcnet_use_layernorm": True})
    layers = hidden_layers(net)
    assert [layer.unit for layer in layers] == [f"encoder.encoder.net.mlp.{i}" for i in (0, 3, 6)]
    assert layers[-1].outgoing == ("pi.net.mlp.0", "vf.net.mlp.0")
    assert all(len(layer.norms) == 1 and layer.activation == "relu" for layer in layers)
    heads = module({"fcnet_hiddens": [8], "head_fcnet_hiddens": [6]})
    assert [layer.unit for layer in hidden_layers(heads)] == [
        "encoder.actor_encoder.net.mlp.0",
        "pi.net.mlp.0",
        "encoder.critic_encoder.net.mlp.0",
        "vf.net.mlp.0",
    ]


def test_the_standard_deviation_is_free_only_where_there_is_one() -> None:
    assert not hasattr(module({}, gym.spaces.Discrete(3)).pi, "log_std")
    assert not hasattr(module({"free_log_std": False}).pi, "log_std")


def test_layers_with_an_initializer_of_their_own_keep_it() -> None:
    net = module({"fcnet_kernel_initializer": "ones_"})
    assert bool((net.encoder.actor_encoder.net.mlp[0].weight == 1).all())
    made = config(replacement_rate=0.1).rl_module(model_config={"fcnet_kernel_initializer": "ones_"})
    with pytest.warns(UserWarning, match="init='empirical'"):
        learner = made.build_learner(spaces=SPACES)
    assert (
        learner._gnts[MODULE].state_dict()["layers"]["encoder.actor_encoder.net.mlp.0"]["distribution"]["kind"] == "empirical"
    )
    made.continual_backprop(init="lecun").build_learner(spaces=SPACES)


def test_new_units_come_from_the_networks_own_distribution() -> None:
    learner = config(replacement_rate=0.1).build_learner(spaces=SPACES)
    state = learner._gnts[MODULE].state_dict()["layers"]
    assert state["encoder.actor_encoder.net.mlp.0"]["distribution"]["scale"] == Distribution.uniform((3 / 4) ** 0.5).scale


def test_a_shared_encoder_is_trained_and_replaced() -> None:
    made = config(replacement_rate=0.05, maturity_threshold=2)
    made.rl_module(model_config={"fcnet_hiddens": [8, 8], "vf_share_layers": True})
    learner = made.build_learner(spaces=SPACES)
    replaced: dict[str, list[int]] = {}
    for step in range(30):
        learner._update(mini_batch(step))
        replaced = learner._reports[MODULE].replaced
        for unit in replaced.get("encoder.encoder.net.mlp.2", []):
            weights = parameters(learner)
            assert not weights["pi.net.mlp.0.weight"][:, unit].any() and not weights["vf.net.mlp.0.weight"][:, unit].any()
    assert all(count > 5 for count in learner._gnts[MODULE].replaced.values())


@pytest.mark.parametrize("shared", [False, True])
def test_channels_of_a_cnn_encoder_are_units(shared: bool) -> None:
    images = gym.spaces.Box(0, 1, (42, 42, 3), np.float32)
    filters = [[4, 4, 2], [6, 4, 2], [8, 11, 1]]
    made = config(replacement_rate=0.1, maturity_threshold=0)
    made.rl_module(model_config={"conv_filters": filters, "vf_share_layers": shared, "head_fcnet_hiddens": [5]})
    learner = made.build_learner(spaces={MODULE: (images, ACTIONS)})
    layers = learner._gnts[MODULE]._layers
    channels = [layer.count for layer in layers if "encoder" in layer.name]
    assert channels == [4, 6, 8] * (1 if shared else 2)
    assert [layer.count for layer in layers if "encoder" not in layer.name] == [5, 5]


def sac(**changed: Any) -> Any:
    made = ContinualSACConfig().training(**changed).continual_backprop(replacement_rate=0.1, maturity_threshold=0)
    model_config = {"fcnet_hiddens": [8, 8], "fusionnet_hiddens": [6, 6]}
    return made.rl_module(model_config=model_config).build_learner(spaces=SPACES)


def test_sacs_q_networks_join_two_streams_and_are_treated() -> None:
    learner = sac()
    streams = [f"base_encoders.{stream}.net.mlp.{i}" for stream in ("actions", "obs") for i in (0, 2)]
    fusion = ["fusion_layers.0", "fusion_layers.1", "output_layer"]
    q_networks = [f"{net}_encoder.{layer}" for net in ("qf", "qf_twin") for layer in (*streams, *fusion)]
    assert learner._gnts[MODULE].layers == [*[f"pi_encoder.net.mlp.{i}" for i in (0, 2)], *q_networks]
    layer = next(units for units in learner._gnts[MODULE]._layers if units.name == "qf_encoder.base_encoders.obs.net.mlp.2")
    # What a stream gives is read by all layers of the fusion network.
    assert [part.name for part in layer.units.consumers] == [f"qf_encoder.{name}" for name in fusion]
    assert [part.index[0].tolist() for part in layer.units.consumers] == [[8], [8 + 6], [8 + 6]]


def test_an_averaged_target_network_is_replaced_in_at_once() -> None:
    learner = sac()
    net, targets = learner.module[MODULE], learner._targets[MODULE]
    with torch.no_grad():
        for parameter in net.qf_encoder.parameters():
            parameter.add_(1.0)
        net.qf.net.mlp[0].weight[:, 3] = 0.0
    before = {name: value.clone() for name, value in net.state_dict().items()}
    targets.follow({"qf_encoder.output_layer": [3]})
    changed = {name: (value != before[name]) for name, value in net.state_dict().items() if bool((value != before[name]).any())}
    assert set(changed) == {
        "target_qf_encoder.output_layer.weight",
        "target_qf_encoder.output_layer.bias",
        "target_qf.net.mlp.0.weight",
    }
    assert bool((net.target_qf_encoder.output_layer.weight[3] == net.qf_encoder.output_layer.weight[3]).all())
    assert not net.target_qf.net.mlp[0].weight[:, 3].any()
    assert int(changed["target_qf_encoder.output_layer.weight"].any(1).sum()) == 1


def test_a_target_network_of_hard_copies_is_left_alone() -> None:
    dqn = ContinualDQNConfig().continual_backprop()
    learner = dqn.build_learner(spaces={MODULE: (OBSERVATIONS, gym.spaces.Discrete(2))})
    assert not learner._targets and not sac(tau=1.0)._targets
    assert isinstance(sac(tau=0.01)._targets[MODULE], Targets)


def test_diagnoses_of_known_activations() -> None:
    same = of_activations(torch.full((4, 3), 0.95))
    assert same == {"dormant_fraction": 0.0, "saturated_fraction": 1.0, "stable_rank": pytest.approx(1.0)}
    apart = of_activations(0.5 * torch.eye(6))
    assert apart["stable_rank"] == pytest.approx(6.0) and apart["saturated_fraction"] == 0.0
    dead = torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
    dead[:, 1] = 0.0
    assert of_activations(dead)["dormant_fraction"] == 0.25
    assert of_activations(torch.zeros(5, 3))["stable_rank"] == 0.0
    assert np.isfinite(list(of_activations(torch.randn(7, 3)).values())).all()
