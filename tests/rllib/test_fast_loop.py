"""The fast loop of env runners samples what RLlib's own loop does, or leaves it to that loop and says why."""

import logging
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from cheap_ant import NAME, CheapAnt, RecordingRunner, cheap_config
from gymnasium.wrappers import TimeLimit
from long_tests import first
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.env_to_module import FlattenObservations
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import ENV_STEP_TIMER, EPISODE_DURATION_SEC_MEAN, RLMODULE_INFERENCE_TIMER, WEIGHTS_SEQ_NO
from ray.rllib.utils.metrics.stats import EmaStats
from ray.tune.registry import register_env

from cbp_ray.activations import ACTIVATIONS
from rllib_ext.ant import open_env_runner
from rllib_ext.ant.action_noise import normals
from rllib_ext.ant.env_runner import SlipperyEnvRunner
from rllib_ext.ant.environment import make
from rllib_ext.ant.plain_policy import PlainPolicy
from rllib_ext.config import ContinualPPOConfig
from rllib_ext.plain_module import PlainActorCritic, PlainMLP, plain_actor_critic


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    CheapAnt.log, CheapAnt.actions, CheapAnt.fails_at = [], [], 0


def plain_config(environments: int, **settings: Any) -> PPOConfig:
    """Of the kind that the fast loop serves."""
    model = {"fcnet_hiddens": [16, 16], "free_log_std": True, "vf_share_layers": False}
    return cheap_config(1, environments, **settings).rl_module(model_config=model)


def plain_runner(config: PPOConfig, kind: type[RecordingRunner] = RecordingRunner) -> RecordingRunner:
    it = kind(config=config, worker_index=1, num_workers=1)
    with torch.no_grad():
        for number, parameter in enumerate(it.module.parameters()):  # type: ignore[union-attr]
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    it.begin_at(0, 1, 0)
    return it


class SlowRunner(RecordingRunner):
    """Takes RLlib's loop, with the random numbers of the fast one."""

    def slow_reason(self, **kwargs: Any) -> str:
        return "this is a test"

    def _sample(
        self, *, explore: bool, num_timesteps: int | None = None, num_episodes: int | None = None, **kwargs: Any
    ) -> Any:
        ticks = open_env_runner.ROOM + (-(-num_timesteps // self.num_envs) if num_timesteps is not None else 1000)
        noise = iter(self.action_noise(ticks * self.num_envs * 8).reshape(ticks, self.num_envs, 8))

        def normal(mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
            return mean + std * torch.from_numpy(next(noise))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "normal", normal)
            return super()._sample(explore=explore, num_timesteps=num_timesteps, num_episodes=num_episodes, **kwargs)


def assert_same_episodes(comp: list[SingleAgentEpisode], ref: list[SingleAgentEpisode]) -> None:
    """Equal, but for names, and for rounding of what the policy says."""
    assert len(comp) == len(ref)
    for ours, theirs in zip(comp, ref, strict=True):
        assert (len(ours), ours.t, ours.t_started) == (len(theirs), theirs.t, theirs.t_started)
        assert (ours.is_terminated, ours.is_truncated) == (theirs.is_terminated, theirs.is_truncated)
        assert ours.is_numpy == theirs.is_numpy and ours.custom_data == theirs.custom_data
        assert ours.infos.data == theirs.infos.data and ours.infos.lookback == theirs.infos.lookback
        assert list(ours.extra_model_outputs) == list(theirs.extra_model_outputs)
        columns = [(ours.observations, theirs.observations), (ours.actions, theirs.actions), (ours.rewards, theirs.rewards)]
        columns += [(ours.extra_model_outputs[name], theirs.extra_model_outputs[name]) for name in ours.extra_model_outputs]
        for own, their in columns:
            assert own.lookback == their.lookback and own.space == their.space
            assert type(own.data) is type(their.data)
            a, b = np.asarray(own.data), np.asarray(their.data)
            assert a.dtype == b.dtype and a.shape == b.shape
            # Sums of up to 28 products of float32, in another order.
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("environments", [1, 3])
@pytest.mark.parametrize(
    ("normalize", "clip", "explore", "lookback", "arrays"),
    first(1, [(True, False, True, 1, True), (False, True, True, 0, True), (False, False, False, 3, False)]),
)
def test_both_loops_sample_the_same_with_the_same_random_numbers(
    environments: int, normalize: bool, clip: bool, explore: bool, lookback: int, arrays: bool
) -> None:
    samples, given, records = [], [], []
    for kind in (RecordingRunner, SlowRunner):
        CheapAnt.actions = []
        config = plain_config(environments).env_runners(
            explore=explore, episode_lookback_horizon=lookback, episodes_to_numpy=arrays
        )
        config.environment(normalize_actions=normalize, clip_actions=clip)
        it = plain_runner(config, kind)
        assert (it.slow_reason() is None) == (kind is RecordingRunner)
        found = [it.sample(num_timesteps=steps) for steps in (70, 1, 50)]
        found.append(it.sample(num_episodes=4))
        found += [it.sample(num_timesteps=40), it.sample(num_timesteps=40, force_reset=True)]
        samples.append(found)
        given.append(CheapAnt.actions)
        records.append((it.record, it.get_metrics()))
        it.stop()
    for comp, ref in zip(*samples, strict=True):
        assert_same_episodes(comp, ref)
    np.testing.assert_allclose(given[0], given[1], rtol=2e-5, atol=2e-5)
    assert any(episode.is_terminated for found in samples[0] for episode in found), "no episode ended"
    (record, metrics), (slow_record, slow_metrics) = records
    assert record == slow_record
    assert set(metrics) >= {ENV_STEP_TIMER, RLMODULE_INFERENCE_TIMER}
    assert set(metrics) == set(slow_metrics)
    for name in set(metrics) - {EPISODE_DURATION_SEC_MEAN}:
        assert_same_metric(metrics[name], slow_metrics[name])


def assert_same_metric(comp: Any, ref: Any) -> None:
    if isinstance(ref, dict):
        assert comp.keys() == ref.keys()
        for name in ref:
            assert_same_metric(comp[name], ref[name])
    elif not isinstance(ref, EmaStats):  # those are seconds
        assert comp.peek() == pytest.approx(ref.peek())


def test_the_loops_may_take_turns() -> None:
    """Each leaves episodes, environments and observations as the other expects them."""
    runs = []
    for slow in ((), (1, 3)):
        it = plain_runner(plain_config(2))
        for turn in range(5):
            it.slow_reason = lambda **_: "a test" if turn in slow else None  # type: ignore[method-assign]  # noqa: B023
            episodes = it.sample(num_timesteps=45, explore=False)
            runs.append((turn, [(e.id_ and len(e), e.t, e.get_observations().round(4).tolist()) for e in episodes]))
        it.stop()
    assert runs[:5] == runs[5:]


def plain_policy(networks: PlainActorCritic, actions: int) -> PlainPolicy:
    return PlainPolicy(networks, gymnasium.spaces.Box(-1, 1, (actions,)), normalize=False, clip=False)


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("rows", [1, 5])
def test_actions_are_those_of_the_module_to_rounding(activation: str, rows: int) -> None:
    config = ContinualPPOConfig().environment("SlipperyAnt-v0").debugging(seed=3)
    config.rl_module(model_config={"fcnet_hiddens": [256, 256], "fcnet_activation": activation})
    it = SlipperyEnvRunner(config=config, worker_index=1, num_workers=1)
    module: Any = it.module
    with torch.no_grad():
        module.pi.log_std += torch.linspace(-2, 2, 8)
    networks = plain_actor_critic(module)
    assert isinstance(networks, PlainActorCritic)
    policy = plain_policy(networks, 8)
    random = np.random.default_rng(0)
    observations, noise = (random.normal(size=(rows, size)).astype(np.float32) for size in (28, 8))
    means, actions, for_env = np.empty((3, rows, 8), np.float32)
    noise *= np.exp(policy.log_std)
    policy.act(observations, noise, means, actions, for_env)
    inputs = module.forward_exploration({Columns.OBS: torch.from_numpy(observations)})[Columns.ACTION_DIST_INPUTS].detach()
    # Sums of 256 products of float32 in another order.
    np.testing.assert_allclose(policy.distribution_inputs(means), inputs.numpy(), rtol=1e-5, atol=1e-5)
    distribution = module.get_exploration_action_dist_cls().from_logits(inputs)
    np.testing.assert_array_equal(actions, means + noise)
    ref = distribution.logp(torch.from_numpy(actions)).numpy()
    np.testing.assert_allclose(policy.log_probabilities(actions, means), ref, rtol=1e-5, atol=1e-4)
    with torch.no_grad():
        module.pi.log_std += torch.linspace(-30, 30, 8)  # some beyond RLlib's limit
    inputs = module.forward_exploration({Columns.OBS: torch.from_numpy(observations)})[Columns.ACTION_DIST_INPUTS].detach()
    np.testing.assert_array_equal(plain_policy(networks, 8).log_std, inputs.numpy()[0, 8:])
    it.stop()


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_every_activation_is_known(name: str) -> None:
    layers = [torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)]
    networks = PlainActorCritic(PlainMLP(layers, name), torch.zeros(2), float("inf"), None)
    observations = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
    means, actions, for_env = np.empty((3, 2, 2), np.float32)
    plain_policy(networks, 2).act(observations, np.zeros((2, 2), np.float32), means, actions, for_env)
    net = torch.nn.Sequential(layers[0], getattr(torch.nn, ACTIVATIONS[name].module)(), layers[1])
    np.testing.assert_allclose(means, net(torch.from_numpy(observations)).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_new_weights_are_used_at_once() -> None:
    it = plain_runner(plain_config(1))
    before = it.sample(num_timesteps=5, explore=False, force_reset=True)[0]
    state = it.module.get_state()  # type: ignore[union-attr]
    it.set_state({"rl_module": {name: value * 0 for name, value in state.items()}, WEIGHTS_SEQ_NO: 7})
    after = it.sample(num_timesteps=5, explore=False, force_reset=True)[0]
    assert np.abs(before.get_actions()).min() > 0 and not after.get_actions().any()
    assert after.get_extra_model_outputs(WEIGHTS_SEQ_NO).tolist() == [7] * 5
    it.stop()


def test_noise_is_standard_normal_and_can_be_drawn_in_parts() -> None:
    whole = normals(3, 20_000, first=0, address=(1, 5, 2))
    parts = [normals(3, count, first=first, address=(1, 5, 2)) for first, count in ((0, 7), (7, 1), (8, 9993), (10_001, 9999))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    # Five standard errors.
    assert abs(whole.mean()) < 5 / 141 and abs(whole.var() - 1) < 5 * np.sqrt(2) / 141
    assert abs((whole**4).mean() - 3) < 5 * np.sqrt(96) / 141
    assert abs(np.corrcoef(whole[::2], whole[1::2])[0, 1]) < 5 / 100


def test_runners_environments_iterations_and_evaluation_have_random_numbers_of_their_own() -> None:
    drawn = []
    for position, evaluates in ((1, False), (2, False), (1, True)):
        config = plain_config(1)
        config.in_evaluation = evaluates
        it = RecordingRunner(config=config, worker_index=position, num_workers=2)
        for step in (0, 500):
            it.begin_at(step, 2, position - 1)
            drawn += [it.action_noise(8).tolist(), it.action_noise(8).tolist()]
            it.begin_at(step, 2, position - 1)  # nothing arrived, as asynchronous algorithms have it
            drawn.append(it.action_noise(8).tolist())
        it.stop()
    assert len({str(numbers) for numbers in drawn}) == len(drawn) == 18
    again = RecordingRunner(config=plain_config(1), worker_index=2, num_workers=2)
    again.begin_at(500, 2, 1)
    assert again.action_noise(8).tolist() == drawn[9]
    unseeded = [RecordingRunner(config=plain_config(1, seed=None), worker_index=1).action_noise(8).tolist() for _ in range(2)]
    assert unseeded[0] != unseeded[1]


class Watching(RLlibCallback):
    """Notes what happens to episodes."""

    seen: list[tuple[str, int, int, float]]

    def note(self, event: str, episode: Any, env_index: int) -> None:
        episode.custom_data.setdefault("events", []).append(event)
        Watching.seen.append((event, env_index, len(episode), float(episode.get_return() if len(episode) else 0.0)))

    def on_episode_created(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        self.note("created", episode, env_index)

    def on_episode_start(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        self.note("start", episode, env_index)

    def on_episode_end(self, *, episode: Any, env_index: int, prev_episode_chunks: list[Any], **kwargs: Any) -> None:
        self.note("end", episode, env_index)
        Watching.seen.append(("before", env_index, len(prev_episode_chunks), float(sum(map(len, prev_episode_chunks)))))


@pytest.mark.long
def test_callbacks_about_episodes_see_the_same_in_both_loops() -> None:
    notes = []
    for kind in (RecordingRunner, SlowRunner):
        Watching.seen = []
        it = plain_runner(plain_config(2).callbacks(Watching), kind)
        episodes = [episode for _ in range(4) for episode in it.sample(num_timesteps=30)]
        notes.append((Watching.seen, [episode.custom_data for episode in episodes]))
        it.stop()
    assert notes[0] == notes[1]
    assert any(event == "before" and parts for event, _, parts, _ in notes[0][0]), "no episode went over two calls"


class Stepwise(RLlibCallback):
    """A callback that only RLlib's loop serves."""

    def on_episode_step(self, **kwargs: Any) -> None: ...


class OtherWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Somebody's own."""


def make_wrapped(config: Any) -> Any:
    return OtherWrapper(make({"friction": config["friction"]}))


def connected(config: PPOConfig) -> PPOConfig:
    return config.env_runners(env_to_module_connector=lambda *_, **__: FlattenObservations())


def wrapped(config: PPOConfig) -> PPOConfig:
    register_env(NAME, make_wrapped)
    return config


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda config: config.callbacks(Stepwise), "on_episode_step"),
        (lambda config: config.callbacks(on_episode_step=lambda **_: None), "on_episode_step"),
        (connected, "connectors"),
        (wrapped, "OtherWrapper"),
        (lambda config: config.rl_module(model_config={"fcnet_hiddens": [4]}), "standard deviation"),
        (lambda config: config.rl_module(model_config={"use_lstm": True}), "connectors"),
    ],
)
def test_whatever_the_fast_loop_does_not_serve_takes_rllibs_with_one_line(
    change: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    it = RecordingRunner(config=change(plain_config(1)), worker_index=1, num_workers=1)
    it.begin_at(0, 1, 0)
    with caplog.at_level(logging.INFO, logger=open_env_runner.__name__):
        assert sum(len(episode) for _ in range(3) for episode in it.sample(num_timesteps=10)) == 30
    (line,) = [record.getMessage() for record in caplog.records if record.name == open_env_runner.__name__]
    assert says in line and "\n" not in line
    assert it.record == [(number, it.schedule.friction(number)) for number in range(30)]
    it.stop()


def test_a_failed_environment_is_made_anew_in_the_fast_loop_too() -> None:
    config = plain_config(2).fault_tolerance(restart_failed_sub_environments=True)
    it = plain_runner(config)
    it.begin_at(90, 1, 0)
    before = sum(map(len, it.sample(num_timesteps=40)))
    CheapAnt.fails_at = before + 51
    it.sample(num_timesteps=60)
    again = CheapAnt.log[before + 51 :]
    assert again == [it.schedule.friction(90 + before + k) for k in range(len(again))]
    assert len(again) >= 60 and it.steps.made == before + len(again)
    CheapAnt.fails_at = len(CheapAnt.log) + 5
    it.config = config.copy(copy_frozen=False).fault_tolerance(restart_failed_sub_environments=False)
    with pytest.raises(RuntimeError) as failure:
        it.sample(num_timesteps=60)
    assert "out of order" in str(failure.value.__cause__)
    it.stop()


def test_friction_follows_the_global_step_in_the_fast_loop() -> None:
    for position, environments in ((0, 1), (1, 3)):
        CheapAnt.log = []
        it = RecordingRunner(config=plain_config(environments), worker_index=position + 1, num_workers=2)
        start, frictions = 250, []
        for _ in range(3):
            it.begin_at(start, 2, position)
            made = sum(map(len, it.sample(num_timesteps=130)))
            frictions += [it.schedule.friction(start + 2 * k + position) for k in range(made)]
            start += 2 * made
        assert it.slow_reason() is None and CheapAnt.log == frictions and len(set(frictions)) > 3
        it.stop()


@pytest.mark.long
def test_the_real_ant_is_sampled_alike_by_both_loops_and_truncated_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for slow in (False, True):
        config = ContinualPPOConfig().environment("SlipperyAnt-v0", env_config={"friction": {"period": 100}}).debugging(seed=5)
        config.rl_module(model_config={"fcnet_hiddens": [4]})
        it = SlipperyEnvRunner(config=config, worker_index=1, num_workers=1)
        with torch.no_grad():
            for parameter in it.module.parameters():  # type: ignore[union-attr]
                parameter.zero_()  # whose actions are the same to the last bit in both loops
        if slow:
            monkeypatch.setattr(it, "slow_reason", lambda **_: "a test")
        env: Any = it.env.unwrapped.envs[0]  # type: ignore[attr-defined]
        while not isinstance(env, TimeLimit):
            env = env.env
        env._max_episode_steps = 15
        it.begin_at(0, 1, 0)
        episodes = [episode for _ in range(2) for episode in it.sample(num_timesteps=100, explore=False)]
        runs.append([(e.get_observations().tolist(), e.get_rewards().tolist(), e.is_truncated, e.t) for e in episodes])
        it.stop()
    assert runs[0] == runs[1]
    assert 15 in {t for _, _, truncated, t in runs[0] if truncated}
