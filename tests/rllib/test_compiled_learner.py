"""The compiled way of PPO's learner against the way through autograd: the same numbers to rounding, and when it is taken."""

import logging
import os
import re
from typing import Any

import numpy as np
import pytest
import torch
from long_tests import first
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.evaluation.postprocessing import Postprocessing
from rllib_help import MODULE, SPACES, assert_same, config, episode, episodes, parameters

from cbp_ray.algorithm.adam import Adam
from rllib_ext.learners.mixin import GRADIENT_STEPS, RESULTS
from rllib_ext.learners.ppo import ContinualPPOTorchLearner
from rllib_ext.plain_module import PlainActorCritic, plain_actor_critic

UPDATE = {"num_epochs": 4, "minibatch_size": 8, "shuffle_batch_per_epoch": True}
ITERATIONS = 7
"""Of 32 mini-batches each: 224 updates."""
OFTEN = {"replacement_rate": 0.01, "maturity_threshold": 20}
UTILITIES = ("random", "weight_magnitude", "contribution", "mean_corrected_contribution", "adaptation", "overall")
# 20 units fill one vector and a part of the next.
NETWORK: dict[str, Any] = {"fcnet_hiddens": [16, 20]}


class Autograd(ContinualPPOTorchLearner):
    """The reference: a loss of its own, though the same, can't be compiled."""

    def compute_loss_for_module(self, **kwargs: Any) -> Any:
        return super().compute_loss_for_module(**kwargs)


def build(learner_class: type, training: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **gnt: Any) -> Any:
    made = config(**gnt).rl_module(model_config=NETWORK | (model or {})).learners(learner_class=learner_class)
    return made.training(**{"lr": 1e-3} | (training or {})).build_learner(spaces=SPACES)


def both(*args: Any, **gnt: Any) -> tuple[Any, Any]:
    return build(ContinualPPOTorchLearner, *args, **gnt), build(Autograd, *args, **gnt)


def assert_learn_alike(compiled: Any, autograd: Any) -> None:
    """Trains both, then compares weights, both states and reports."""
    for seed in range(ITERATIONS):
        ours, theirs = (each.update(episodes=episodes(seed), **UPDATE) for each in (compiled, autograd))
    assert compiled._reason is None
    assert "of its own" in autograd._reason
    assert_close(parameters(compiled), parameters(autograd))
    assert_close(compiled.get_state()["optimizer"], autograd.get_state()["optimizer"])
    if MODULE in compiled._gnts:
        states = [learner._gnts[MODULE].state_dict() for learner in (compiled, autograd)]
        # Utilities may divide by sums of small weights.
        assert_close(*states, rtol=1e-3)
        assert all(count > 15 for count in compiled._gnts[MODULE].replaced.values())
    assert_reports_alike(ours, theirs)


def assert_close(a: Any, b: Any, rtol: float = 1e-4) -> None:
    """Equal to rounding, and whole numbers equal: after 224 steps of 1e-3, a weight has moved by tenths."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_close(a[key], b[key], rtol)
    elif isinstance(a, list | tuple):
        for x, y in zip(a, b, strict=True):
            assert_close(x, y, rtol)
    elif isinstance(a, torch.Tensor | np.ndarray | float):
        a, b = np.asarray(a), np.asarray(b)
        tolerance = rtol if a.dtype.kind == "f" else 0
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance / 10)
    else:
        assert a == b


def assert_reports_alike(ours: Any, theirs: Any) -> None:
    ours, theirs = (flat(report) for report in (ours, theirs))
    timers = {name for name in (*ours, *theirs) if "timer" in name or "throughput" in name}
    assert set(ours) - timers == set(theirs) - timers
    for name in set(ours) - timers:
        # RLlib's connectors leave the rows behind the episodes' ends in the episodes; there are none otherwise.
        if not name.endswith("learner_connector_sum_episodes_length_out"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5, nan_ok=True), name
    assert ours[f"__all_modules__/{GRADIENT_STEPS}"] == 32
    assert f"{MODULE}/policy_loss" in ours
    assert f"{MODULE}/{RESULTS}/pi.net.mlp.0/weight_magnitude" not in ours  # of hidden layers alone
    assert any(name.endswith("/stable_rank") for name in ours)


def flat(report: Any, path: str = "") -> dict[str, float]:
    if isinstance(report, dict):
        found: dict[str, float] = {}
        for key, value in report.items():
            found |= flat(value, f"{path}/{key}" if path else str(key))
        return found
    return {path: float(report.peek())}


@pytest.mark.parametrize(
    "activation",
    first(2, ["tanh", "relu", "Sigmoid", "LeakyReLU", "elu", "swish"]),
)
def test_every_activation_learns_as_with_autograd(activation: str) -> None:
    assert_learn_alike(*both(None, {"fcnet_activation": activation}, **OFTEN))


@pytest.mark.parametrize("preset", first(1, ["paper", "nature2024"]))
@pytest.mark.parametrize(
    "utility", ["overall", *(pytest.param(name, marks=pytest.mark.long) for name in UTILITIES if name != "overall")]
)
def test_every_utility_and_preset_replaces_the_same_units(utility: str, preset: str) -> None:
    assert_learn_alike(*both(**OFTEN, utility=utility, preset=preset))


@pytest.mark.parametrize(
    "training",
    first(
        1,
        [
            {"clip_param": 0.01, "vf_clip_param": 0.5, "vf_loss_coeff": 0.5, "entropy_coeff": 0.01, "weight_decay": 1e-2},
            {"weight_decay": 1e-2},
            {"clip_param": 1e6},
        ],
    ),
)
@pytest.mark.parametrize("gnt", first(1, [OFTEN | {"replacement": "bernoulli"}, {}]))
def test_clipping_entropy_and_weight_decay_are_those_of_the_loss(training: dict[str, float], gnt: dict[str, Any]) -> None:
    assert_learn_alike(*both(training, **gnt))


@pytest.mark.long
def test_a_clamped_log_standard_deviation_does_not_learn() -> None:
    compiled, autograd = both(None, {"log_std_clip_param": 0.02})
    assert_learn_alike(compiled, autograd)
    assert float(parameters(compiled)["pi.log_std"].abs().max()) > 0.02


def test_one_and_two_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    learners = []
    for threads in (1, 2):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=threads: set(range(n)))
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        learners.append(build(ContinualPPOTorchLearner, **OFTEN))
        for seed in range(3):
            learners[-1].update(episodes=episodes(seed), **UPDATE)
    one, two = learners
    assert one._compiled._threads is None
    assert two._compiled._threads is not None
    assert_same(parameters(one), parameters(two))
    assert_same(one.get_state()["optimizer"], two.get_state()["optimizer"])
    assert_same(one._gnts[MODULE].state_dict(), two._gnts[MODULE].state_dict())


def test_a_run_may_change_from_one_way_to_the_other() -> None:
    """Both leave the same state: what is learned first with autograd and then compiled equals what is all compiled."""
    compiled, autograd = both(**OFTEN)
    for seed in range(3):
        for each in (compiled, autograd):
            each.update(episodes=episodes(seed), **UPDATE)
    changing = build(ContinualPPOTorchLearner, **OFTEN)
    changing.set_state(autograd.get_state())
    assert_learn_alike(compiled, autograd)
    for seed in range(ITERATIONS):
        changing.update(episodes=episodes(seed), **UPDATE)
    assert_close(parameters(changing), parameters(compiled))


def test_gradients_that_are_not_finite_are_treated_as_by_rllib(caplog: pytest.LogCaptureFixture) -> None:
    """A policy whose action was thought all but impossible: its ratio is infinite in the mini-batches that have the row."""
    compiled, autograd = both()
    for seed in range(2):
        for each in (compiled, autograd):
            random = np.random.default_rng(seed)
            given = [episode(random, 40), episode(random, 24)]
            given[0].extra_model_outputs[Columns.ACTION_LOGP].data[7] = np.float32(-500)
            each.update(episodes=given, **UPDATE)
    assert compiled._reason is None
    assert re.search(r"gradients of pi.log_std contained nan/inf values in \d+ of 32 mini-batches", caplog.text)
    assert_close(parameters(compiled), parameters(autograd))


@pytest.mark.parametrize(
    ("training", "model", "reason"),
    [
        ({"use_kl_loss": True}, {}, "KL term"),
        ({"grad_clip": 0.5}, {}, "clipped"),
        ({}, {"vf_share_layers": True}, "share an encoder"),
        ({}, {"free_log_std": False}, "standard deviation is an output"),
        ({}, {"head_fcnet_hiddens": [4], "head_fcnet_activation": "relu"}, "several kinds of activation"),
    ],
)
def test_what_is_not_compiled_learns_with_autograd_and_says_why(
    training: dict[str, Any], model: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rllib_ext"):
        learner = build(ContinualPPOTorchLearner, training, model)
        for seed in range(2):
            learner.update(episodes=episodes(seed), **UPDATE)
    (line,) = [record.message for record in caplog.records if "learns" in record.message]
    assert "learns with autograd, because" in line
    assert reason in line


@pytest.mark.long
def test_frozen_parameters_and_other_optimizers_are_left_to_autograd() -> None:
    class WithSGD(ContinualPPOTorchLearner):
        def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
            params = self.get_parameters(self.module[module_id])
            self.register_optimizer(module_id=module_id, optimizer=torch.optim.SGD(params, lr=1e-3), params=params)

    other, frozen = build(WithSGD), build(ContinualPPOTorchLearner)
    frozen.module[MODULE].pi.log_std.requires_grad_(False)
    before = frozen.module[MODULE].pi.log_std.clone()
    assert "cbp_ray.Adam" in other._compilable(MODULE)
    assert "frozen" in frozen._compilable(MODULE)
    other.update(episodes=episodes(0), **UPDATE)
    assert_same(frozen.module[MODULE].pi.log_std.detach(), before)


def test_the_compiled_way_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rllib_ext"):
        learner = build(ContinualPPOTorchLearner)
        for seed in range(3):
            learner.update(episodes=episodes(seed), **UPDATE)
    assert [record.message for record in caplog.records if "learns" in record.message] == [
        f"module {MODULE!r} learns in compiled code"
    ]


@pytest.mark.long
@pytest.mark.parametrize("as_numpy", [False, True])
def test_a_batch_in_bulk_is_that_of_the_connectors(as_numpy: bool) -> None:
    compiled, autograd = both()
    batches = []
    for each in (compiled, autograd):
        random = np.random.default_rng(1)
        given = [episode(random, 9), episode(random, 1, terminated=True), episode(random, 14, terminated=True)]
        if as_numpy:
            given = [one.to_numpy() for one in given]
        batches.append(each._make_batch_if_necessary(TrainingData(episodes=given)).policy_batches[MODULE])
    ours, theirs = batches
    assert set(ours) == set(theirs)
    for name in set(ours):
        if name in (Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS):
            assert_close(ours[name], theirs[name])
        else:
            assert_same(ours[name], theirs[name])


@pytest.mark.long
def test_a_users_connector_is_asked() -> None:
    from ray.rllib.connectors.connector_v2 import ConnectorV2

    class Scale(ConnectorV2):
        def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
            for one in episodes:
                one.set_rewards(new_data=[100 * reward for reward in one.get_rewards()])
            return batch

    made = config().learners(learner_connector=lambda *_: Scale())
    scaled, plain = (each.build_learner(spaces=SPACES) for each in (made, config()))
    targets = []
    for each in (scaled, plain):
        batch = each._make_batch_if_necessary(TrainingData(episodes=episodes(0)))
        targets.append(float(batch.policy_batches[MODULE][Postprocessing.VALUE_TARGETS].std()))
    assert targets[0] > 30 * targets[1]
    scaled.update(episodes=episodes(0), **UPDATE)
    assert scaled._reason is None


def test_a_plain_module_is_its_networks_and_one_for_inference_has_no_value() -> None:
    spec = config().get_rl_module_spec(spaces=SPACES)
    whole = plain_actor_critic(spec.build())
    spec.inference_only = True
    inference = plain_actor_critic(spec.build())
    assert isinstance(whole, PlainActorCritic)
    assert isinstance(inference, PlainActorCritic)
    assert whole.policy.activation == "tanh"
    assert [layer.out_features for layer in whole.policy.layers] == [16, 16, 2]
    assert whole.value is not None
    assert whole.value.layers[-1].out_features == 1
    assert whole.log_std_limit == 20
    assert inference.value is None
    assert len(whole.parameters) == 13
    assert len(inference.parameters) == 7
    assert Adam(whole.parameters).param_groups[0]["params"][6] is whole.log_std
