"""The learner of Continual PPO: generate-and-test, losses and advantages against plain loops; state; what it refuses."""

import copy
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from rllib_help import MODULE, SPACES, UPDATE, assert_same, config, episodes, mini_batch, parameters
from torch import Tensor, nn

from cbp_ray import Adam, GenerateAndTest
from cbp_ray.errors import InputError
from rllib_ext.learners import ppo
from rllib_ext.learners.advantages import generalized_advantages
from rllib_ext.learners.minibatches import MiniBatches
from rllib_ext.learners.mixin import COMPONENT_GNT, RESULTS
from rllib_ext.learners.ppo import ContinualPPOTorchLearner

OFTEN = {"replacement_rate": 0.02, "maturity_threshold": 5}


@pytest.fixture
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class PlainPPO(nn.Module):
    """The paper's networks and losses, written by hand."""

    def __init__(self, learner: Any) -> None:
        super().__init__()
        module = copy.deepcopy(learner.module[MODULE])
        self.policy = nn.Sequential(*module.encoder.actor_encoder.net.mlp, *module.pi.net.mlp)
        self.value = nn.Sequential(*module.encoder.critic_encoder.net.mlp, *module.vf.net.mlp)
        self.log_std = module.pi.log_std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(x), self.value(x)

    def loss(self, batch: dict[str, Tensor], clip: float = 0.2) -> Tensor:
        mean, value = self(batch[Columns.OBS])
        deviation = (batch[Columns.ACTIONS] - mean) / self.log_std.exp()
        logp = (-(deviation**2) / 2 - self.log_std - math.log(2 * math.pi) / 2).sum(1)
        ratio = (logp - batch[Columns.ACTION_LOGP]).exp()
        advantage = batch[Postprocessing.ADVANTAGES]
        policy_loss = -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
        return policy_loss + ((value[:, 0] - batch[Postprocessing.VALUE_TARGETS]) ** 2).mean()


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("preset", ["paper", "nature2024"])
def test_the_learner_equals_a_hand_written_ppo_with_generate_and_test(preset: str) -> None:
    learner = config(**OFTEN, preset=preset).training(lr=1e-3, weight_decay=1e-4).build_learner(spaces=SPACES)
    plain = PlainPPO(learner)
    optimizer = Adam(plain.parameters(), lr=1e-3, weight_decay=1e-4)
    gnt = GenerateAndTest(plain, optimizer, **OFTEN, preset=preset, seed=3)
    for step in range(60):
        batch = mini_batch(step, dtype=torch.float64)
        learner._update(batch)
        optimizer.zero_grad()
        plain.loss(batch[MODULE]).backward()
        optimizer.step()
        report = gnt.step()
        assert list(learner._reports[MODULE].replaced.values()) == list(report.replaced.values())
    assert sum(gnt.replaced.values()) > 50
    ours, theirs = parameters(learner), plain.state_dict()
    for part, head, net in (("actor", "pi", "policy"), ("critic", "vf", "value")):
        for layer, (name, number) in enumerate((("encoder", 0), ("encoder", 2), ("head", 0))):
            path = f"encoder.{part}_encoder.net.mlp.{number}" if name == "encoder" else f"{head}.net.mlp.0"
            for kind in ("weight", "bias"):
                # The loss is summed in another order.
                torch.testing.assert_close(ours[f"{path}.{kind}"], theirs[f"{net}.{2 * layer}.{kind}"], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(ours["pi.log_std"], theirs["log_std"], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("settings", [{}, {"entropy_coeff": 0.01, "vf_clip_param": 3.0, "vf_loss_coeff": 0.5}])
def test_the_loss_equals_rllibs_bit_for_bit(settings: dict[str, float]) -> None:
    learner = config().training(**settings).build_learner(spaces=SPACES)
    for seed in range(5):
        batch = mini_batch(seed)
        losses, gradients = [], []
        for loss_of in (ContinualPPOTorchLearner.compute_loss_for_module, PPOTorchLearner.compute_loss_for_module):
            out = learner.module.forward_train(batch)
            loss = loss_of(learner, module_id=MODULE, config=learner.config, batch=batch[MODULE], fwd_out=out[MODULE])
            losses.append(loss.detach())
            gradients.append(list(learner.compute_gradients({MODULE: loss}).values()))
        assert_same(*losses)
        for ours, theirs in zip(*gradients, strict=True):
            assert_same(ours, theirs)


@pytest.mark.usefixtures("_float64")
def test_rate_0_equals_rllibs_ppo_bit_for_bit() -> None:
    """In float64, in which both use the same Adam; that of float32 is compiled and equals torch's to rounding."""
    stock = PPOTorchLearner(config=config(), module_spec=config().get_multi_rl_module_spec(spaces=SPACES))
    stock.build()
    without, rate_0 = (made.build_learner(spaces=SPACES) for made in (config(), config(replacement_rate=0.0)))
    for step in range(50):
        for each in (stock, without, rate_0):
            each._update(mini_batch(step, dtype=torch.float64))
    assert_same(parameters(without), parameters(stock))
    assert_same(parameters(rate_0), parameters(stock))
    assert rate_0._gnts[MODULE].steps == 50


def test_the_learner_equals_rllibs_in_float32_to_rounding() -> None:
    stock = PPOTorchLearner(config=config(), module_spec=config().get_multi_rl_module_spec(spaces=SPACES))
    stock.build()
    ours = config().build_learner(spaces=SPACES)
    for step in range(50):
        for each in (stock, ours):
            each._update(mini_batch(step))
    # 50 steps of size 1e-4: differences are a thousandth of what was learned.
    for name, value in parameters(ours).items():
        torch.testing.assert_close(value, parameters(stock)[name], rtol=0, atol=5e-6)


def test_rate_0_equals_no_generate_and_test_in_whole_updates() -> None:
    learners = [made.build_learner(spaces=SPACES) for made in (config(), config(replacement_rate=0.0))]
    for seed in range(3):
        for each in learners:
            each.update(episodes=episodes(seed), **UPDATE)
    assert_same(*map(parameters, learners))


def test_advantages_equal_the_sum_that_defines_them() -> None:
    random = np.random.default_rng(0)
    lengths, terminal, gamma, lambda_ = (5, 1, 7), (False, True, True), 0.9, 0.8
    values, rewards = random.normal(size=16), random.normal(size=16)
    ends = np.cumsum([n + 1 for n in lengths]) - 1
    chunk_ends = np.isin(np.arange(16), ends)
    terminated = np.zeros(16, bool)
    for end, is_terminal in zip(ends, terminal, strict=True):
        terminated[end - 1] = is_terminal
    result = generalized_advantages(values, rewards, terminated, chunk_ends, gamma, lambda_)
    start = 0
    for length, is_terminal in zip(lengths, terminal, strict=True):
        v = values[start : start + length + 1].copy()
        v[-1] *= not is_terminal
        delta = [rewards[start + t] + gamma * v[t + 1] - v[t] for t in range(length)]
        for t in range(length):
            expected = sum((gamma * lambda_) ** k * delta[t + k] for k in range(length - t))
            assert result[start + t] == pytest.approx(expected, rel=1e-12)
        start += length + 1


def test_a_batch_holds_exactly_the_steps_taken_with_standardized_advantages() -> None:
    learner = config().build_learner(spaces=SPACES)
    given = episodes(0)
    observations = np.concatenate([np.array(e.get_observations())[:-1] for e in given])
    last = [e.get_observations()[-1] for e in given]
    rewards = [e.get_rewards() for e in given]
    with torch.no_grad():
        value = learner.module[MODULE].compute_values
        values = [value({Columns.OBS: torch.tensor(np.array(e.get_observations()))}).numpy() for e in given]
    batch = _batch(learner, given)
    assert_same(batch[Columns.OBS].numpy(), observations)
    assert not any((batch[Columns.OBS].numpy() == row).all(1).any() for row in last)
    assert Columns.LOSS_MASK not in batch
    advantages = batch[Postprocessing.ADVANTAGES]
    assert float(advantages.mean()) == pytest.approx(0, abs=1e-6)
    assert float(advantages.std(correction=0)) == pytest.approx(1, abs=1e-5)
    # The last step of an episode: truncated, the value of the state after it counts; terminated, it does not.
    targets = batch[Postprocessing.VALUE_TARGETS].numpy()
    assert targets[29] == pytest.approx(rewards[0][-1] + 0.99 * values[0][-1], rel=1e-5)
    assert targets[53] == pytest.approx(rewards[1][-1], rel=1e-5)


def _batch(learner: Any, given: list[Any]) -> dict[str, Tensor]:
    from ray.rllib.core.learner.training_data import TrainingData

    data = TrainingData(episodes=given)
    return learner._make_batch_if_necessary(data).policy_batches[MODULE]


def test_every_epoch_visits_every_row_once_in_a_new_order() -> None:
    batches = MiniBatches("m", {"x": torch.arange(40)}, num_epochs=3, minibatch_size=8, seed=1)
    rows = torch.cat([batch.policy_batches["m"]["x"] for batch in batches])
    orders = [rows[40 * epoch : 40 * (epoch + 1)] for epoch in range(3)]
    assert all(sorted(order.tolist()) == list(range(40)) for order in orders)
    assert len({tuple(order.tolist()) for order in [*orders, torch.arange(40)]}) == 4
    assert batches.total == 15


def test_the_order_of_rows_depends_on_seed_learner_and_epoch_alone() -> None:
    def order(**changed: int) -> list[int]:
        settings = {"num_epochs": 1, "minibatch_size": 40, "seed": 1} | changed
        (batch,) = MiniBatches("m", {"x": torch.arange(40)}, **settings)
        return batch.policy_batches["m"]["x"].tolist()

    first = order()
    torch.rand(1), np.random.rand()  # noqa: NPY002
    assert order() == first
    assert len({tuple(o) for o in (first, order(seed=2), order(learner=1), order(first_epoch=1))}) == 4


@pytest.mark.parametrize(("rows", "total", "expected"), [(41, 0, 10), (5, 0, 2), (40, 7, 7)])
def test_mini_batches_are_full_whatever_the_number_of_rows(rows: int, total: int, expected: int) -> None:
    batches = list(MiniBatches("m", {"x": torch.arange(rows)}, num_epochs=2, minibatch_size=8, seed=1, total=total))
    assert len(batches) == expected
    assert {len(batch.policy_batches["m"]["x"]) for batch in batches} == {min(8, rows)}
    assert [batch.is_last for batch in batches] == [False] * (expected - 1) + [True]


def test_values_for_advantages_are_not_taken_for_a_mini_batch() -> None:
    """The units' averages must come from the mini-batch alone, not from the pass over all data before it.

    The first learner is compiled, the second is not: they agree to rounding.
    """
    learner, without_connector = (config(**OFTEN).build_learner(spaces=SPACES) for _ in range(2))
    learner.update(episodes=episodes(0), num_epochs=1, minibatch_size=64, shuffle_batch_per_epoch=True)
    columns = _batch(without_connector, episodes(0))
    (order,) = MiniBatches(MODULE, {"i": torch.arange(64)}, num_epochs=1, minibatch_size=64, seed=3)
    index = order.policy_batches[MODULE]["i"]
    without_connector._update({MODULE: {name: column[index] for name, column in columns.items()}})
    ours, theirs = (each._gnts[MODULE].state_dict()["layers"] for each in (learner, without_connector))
    for layer, state in ours.items():
        for name in ("average_activation", "average_utility", "correction"):
            torch.testing.assert_close(state[name], theirs[layer][name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("through_files", [False, True])
def test_a_resumed_learner_continues_to_the_last_bit(tmp_path: Path, through_files: bool) -> None:
    unbroken, first, resumed = (config(**OFTEN).training(lr=1e-3).build_learner(spaces=SPACES) for _ in range(3))
    for seed in range(8):
        unbroken.update(episodes=episodes(seed), **UPDATE)
    for seed in range(4):
        first.update(episodes=episodes(seed), **UPDATE)
    if through_files:
        first.save_to_path(tmp_path)
        resumed.restore_from_path(tmp_path)
    else:
        resumed.set_state(first.get_state())
        first.update(episodes=episodes(99), **UPDATE)  # must not reach into what it handed out
    for seed in range(4, 8):
        resumed.update(episodes=episodes(seed), **UPDATE)
    assert_same(parameters(resumed), parameters(unbroken))
    assert_same(resumed._gnts[MODULE].state_dict(), unbroken._gnts[MODULE].state_dict())
    ours, theirs = (learner.get_state()["optimizer"] for learner in (resumed, unbroken))
    assert_same(ours, theirs)
    assert sum(resumed._gnts[MODULE].replaced.values()) > sum(first._gnts[MODULE].replaced.values()) > 5


def test_going_back_to_an_older_state_goes_all_the_way() -> None:
    learner = config(**OFTEN).build_learner(spaces=SPACES)
    learner.update(episodes=episodes(0), **UPDATE)
    state = copy.deepcopy(learner.get_state())
    before = parameters(learner)
    for seed in range(3):
        learner.update(episodes=episodes(seed), **UPDATE)
    learner.set_state(state)
    assert_same(parameters(learner), before)


def test_weights_for_environment_runners_come_without_the_learners_state() -> None:
    learner = config(**OFTEN).build_learner(spaces=SPACES)
    assert COMPONENT_GNT not in learner.get_state(components="rl_module", inference_only=True)
    assert COMPONENT_GNT not in learner.get_state(not_components=[COMPONENT_GNT])
    assert COMPONENT_GNT in learner.get_state(not_components=["rl_module"])


def test_results_say_what_was_replaced_and_how_able_to_learn_the_networks_are() -> None:
    learner = config(**OFTEN).build_learner(spaces=SPACES)
    results = [learner.update(episodes=episodes(seed), **UPDATE) for seed in range(4)]
    numbers = [result[MODULE][RESULTS] for result in results]
    replaced = [each["replaced"].peek() for each in numbers]
    assert sum(replaced) == numbers[-1]["replaced_lifetime"].peek() == sum(learner._gnts[MODULE].replaced.values()) > 0
    layer = {name: value.peek() for name, value in numbers[-1]["encoder.critic_encoder.net.mlp.2"].items()}
    assert {"weight_magnitude", "dormant_fraction", "saturated_fraction", "stable_rank", "age_mean"} < set(layer)
    assert layer["utility_q05"] <= layer["utility_q50"] <= layer["utility_q95"]
    assert 1 <= layer["stable_rank"] <= 16 and layer["age_max"] == 32
    assert results[0]["__all_modules__"]["num_gradient_steps"].peek() == 8


def test_without_generate_and_test_the_networks_are_diagnosed_all_the_same() -> None:
    result = config().build_learner(spaces=SPACES).update(episodes=episodes(0), **UPDATE)
    numbers = result[MODULE][RESULTS]
    assert set(numbers) == {
        f"encoder.{net}_encoder.net.mlp.{layer}" for net, layer in itertools.product(("actor", "critic"), (0, 2))
    }
    assert numbers["encoder.actor_encoder.net.mlp.0"]["weight_magnitude"].peek() > 0


def test_an_iteration_without_a_gradient_step_is_an_error() -> None:
    frozen = config().build_learner(spaces=SPACES)
    frozen.module[MODULE].requires_grad_(False)
    with pytest.raises(RuntimeError, match="no gradient step"):
        frozen.update(episodes=episodes(0), **UPDATE)
    nobody = config().multi_agent(policies_to_train=[]).build_learner(spaces=SPACES)
    with pytest.raises(RuntimeError, match="policies_to_train"):
        nobody.update(episodes=episodes(0), **UPDATE)


def test_a_gradient_that_is_not_a_number_spoils_no_weight_and_stops_nothing() -> None:
    learner = config(**OFTEN).build_learner(spaces=SPACES)
    learner._update(mini_batch(0))
    batch = mini_batch(1)
    batch[MODULE][Postprocessing.ADVANTAGES][0] = torch.nan
    learner._update(batch)
    assert all(bool(value.isfinite().all()) for value in parameters(learner).values())


def test_whoever_wants_no_shuffling_gets_the_order_of_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = config().build_learner(spaces=SPACES)
    learner.update(episodes=episodes(0), **UPDATE)

    def never(*_args: Any, **_kwargs: Any) -> None:
        raise AssertionError("shuffled")

    monkeypatch.setattr(ppo, "MiniBatches", never)
    learner.update(episodes=episodes(0), **UPDATE | {"shuffle_batch_per_epoch": False})
    with pytest.raises(AssertionError, match="shuffled"):
        learner.update(episodes=episodes(0), **UPDATE)


def test_a_checkpoint_of_other_settings_is_refused_with_the_call_to_change() -> None:
    saved = config(**OFTEN).build_learner(spaces=SPACES).get_state()
    other = config(**OFTEN | {"replacement_rate": 0.5}).build_learner(spaces=SPACES)
    with pytest.raises(InputError, match=r"^\.continual_backprop\(\.\.\.\), module .*call \.continual_backprop\(\.\.\.\) with"):
        other.set_state(saved)


def test_weight_decay_is_l2() -> None:
    plain, decayed = (config().training(lr=0.0, weight_decay=decay).build_learner(spaces=SPACES) for decay in (0.0, 0.5))
    for each in (plain, decayed):
        each._update(mini_batch(0))
    for name, optimizer in decayed._named_optimizers.items():
        for theirs, ours in zip(
            plain._named_optimizers[name].param_groups[0]["params"], optimizer.param_groups[0]["params"], strict=True
        ):
            expected = 0.1 * (theirs.grad + 0.5 * ours.detach())
            torch.testing.assert_close(optimizer.state[ours]["exp_avg"], expected)
