"""One env runner in this process: which step is which, and what friction it has."""

from typing import Any

import numpy as np
import pytest
from cheap_ant import CheapAnt, RecordingRunner, cheap_config
from long_tests import first
from ray.rllib.algorithms.ppo import PPO, PPOConfig

from cbp_ray.errors import InputError
from rllib_ext.ant import open_env_runner
from rllib_ext.ant.algorithm_mixin import GlobalStepAlgorithm, slippery
from rllib_ext.ant.env_runner import GlobalSteps, SlipperyEnvRunner
from rllib_ext.ant.episode_returns import END_STEPS, RETURNS
from rllib_ext.ant.friction import FrictionSchedule
from rllib_ext.ant.lean_connectors import LeanEnvToModule
from rllib_ext.config import ContinualPPO, ContinualPPOConfig

SCHEDULE = FrictionSchedule(seed=5, period=100)


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    CheapAnt.log = []
    CheapAnt.fails_at = 0


def runner(position: int, runners: int, environments: int, **settings: Any) -> RecordingRunner:
    config = cheap_config(runners, environments, **settings)
    return RecordingRunner(config=config, worker_index=position + 1, num_workers=runners)


def sample(of: SlipperyEnvRunner, steps: int) -> int:
    """Returns how many steps were really made."""
    return sum(len(episode) for episode in of.sample(num_timesteps=steps, random_actions=True))


def test_equal_shares_cover_the_global_steps_without_gap_or_repetition() -> None:
    shares = [GlobalSteps(runners=3, position=w, start=1000) for w in range(3)]
    numbers = []
    for share in shares:
        for _ in range(50):
            numbers.append(share.number())
            share.made += 1
    assert sorted(numbers) == list(range(1000, 1150))


@pytest.mark.parametrize(("runners", "environments"), first(2, [(1, 3), (4, 3), (1, 1), (2, 1), (2, 3), (4, 1)]))
def test_friction_is_a_function_of_the_global_step(runners: int, environments: int) -> None:
    """The k-th step of runner w is `start + k W + w`; here it is counted by the environments and not by the runner."""
    for position in {0, runners - 1}:
        CheapAnt.log = []
        it, start, frictions = runner(position, runners, environments), 250, []
        for _ in range(3):
            it.begin_at(start, runners, position)
            made = sample(it, 130)
            frictions += [SCHEDULE.friction(start + k * runners + position) for k in range(made)]
            start += made * runners
        assert CheapAnt.log == frictions
        assert len(set(frictions)) > 3
        assert it.record == [(number, SCHEDULE.friction(number)) for number, _ in it.record]
        it.stop()


def test_calls_between_two_messages_of_the_algorithm_go_on_counting() -> None:
    it = runner(1, 2, 2)
    it.begin_at(70, 2, 1)
    made = [sample(it, 20) for _ in range(5)]
    assert CheapAnt.log == [SCHEDULE.friction(70 + 2 * k + 1) for k in range(sum(made))]
    it.begin_at(30, 2, 1)
    sample(it, 20)
    assert CheapAnt.log[sum(made)] == SCHEDULE.friction(31) == 1.5
    it.stop()


def test_finished_episodes_are_reported_with_their_last_step_and_their_whole_return() -> None:
    it = runner(1, 2, 1)
    it.begin_at(400, 2, 1)
    chunks = [episode for _ in range(10) for episode in it.sample(num_timesteps=13, random_actions=True)]
    metrics = it.get_metrics()
    steps, returns = metrics[END_STEPS].items, metrics[RETURNS].items
    lengths: dict[str, int] = {}
    ref, made = [], 0
    for chunk in chunks:
        made += len(chunk)
        lengths[chunk.id_] = lengths.get(chunk.id_, 0) + len(chunk)
        if chunk.is_done:
            ref.append((400 + 2 * (made - 1) + 1, float(lengths[chunk.id_])))
    assert len(ref) > 2 and list(zip(steps, returns, strict=True)) == ref
    it.stop()


def test_a_failed_environment_is_made_anew_with_the_friction_of_its_step() -> None:
    config = cheap_config(1, 2).fault_tolerance(restart_failed_sub_environments=True)
    it = RecordingRunner(config=config, worker_index=1, num_workers=1)
    it.begin_at(90, 1, 0)
    before = sample(it, 40)
    CheapAnt.fails_at = before + 51
    sample(it, 60)
    # The 51st step failed, the call began again, and RLlib counts from there.
    again = CheapAnt.log[before + 51 :]
    assert again == [SCHEDULE.friction(90 + before + k) for k in range(len(again))]
    assert len(again) >= 60 and it.steps.made == before + len(again)
    it.stop()


def test_evaluation_keeps_the_friction_of_the_step_it_began_at() -> None:
    config = cheap_config(2, 2)
    config.in_evaluation = True
    it = RecordingRunner(config=config, worker_index=2, num_workers=2)
    it.begin_at(555, 2, 1)
    sample(it, 150)
    assert set(CheapAnt.log) == {SCHEDULE.friction(555)}
    it.stop()


def observations(of: SlipperyEnvRunner, steps: int = 30) -> Any:
    return [episode.get_observations().tolist() for episode in of.sample(num_timesteps=steps, random_actions=True)]


def test_every_environment_has_seeds_of_its_own_and_a_replaced_runner_new_ones() -> None:
    firsts = set()
    for position in range(3):
        it = runner(position, 3, 3)
        it.begin_at(0, 3, position)
        firsts |= {str(episode[0]) for episode in observations(it, 3)}
    replaced = runner(2, 3, 3)
    replaced.begin_at(600, 3, 2)
    firsts |= {str(episode[0]) for episode in observations(replaced, 3)}
    assert len(firsts) == 12
    again = runner(2, 3, 3)
    again.begin_at(600, 3, 2)
    assert {str(episode[0]) for episode in observations(again, 3)} <= firsts


def real_config(environments: int) -> PPOConfig:
    return slippery(
        PPOConfig()
        .environment("SlipperyAnt-v0", env_config={"friction": {"period": 50}})
        .env_runners(num_env_runners=2, num_envs_per_env_runner=environments)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .debugging(seed=5)
    )


def test_the_real_ant_gets_its_friction_through_all_wrappers_and_a_seed_fixes_the_run() -> None:
    runs = []
    for _ in range(2):
        it = SlipperyEnvRunner(config=real_config(2), worker_index=1, num_workers=2)
        it.begin_at(0, 2, 0)
        episodes = it.sample(num_timesteps=90, random_actions=False)
        # 90 steps of 2 runners: the last ones are numbers 176 and 178.
        ants = [env.unwrapped for env in it.env.unwrapped.envs]  # type: ignore[attr-defined]
        friction = FrictionSchedule(seed=5, period=50).friction(178)
        assert [(ant.friction, ant._world.friction) for ant in ants] == [(friction, friction)] * 2
        runs.append([(e.get_observations().tolist(), e.get_rewards().tolist()) for e in episodes])
        it.stop()
    assert runs[0] == runs[1]


@pytest.mark.parametrize("environments", first(1, [3, 1]))
@pytest.mark.parametrize(("normalize", "clip", "explore"), [(True, False, True), (False, True, True), (False, False, False)])
def test_lean_connectors_sample_what_rllibs_do(
    environments: int, normalize: bool, clip: bool, explore: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, actions = [], []
    for lean in (True, False):
        CheapAnt.actions = []
        config = cheap_config(1, environments).env_runners(explore=explore)
        config.environment(normalize_actions=normalize, clip_actions=clip)
        if not lean:
            monkeypatch.setattr(open_env_runner, "lean", lambda before, after, *_: (before, after))
        it = RecordingRunner(config=config, worker_index=1, num_workers=1)
        assert isinstance(it._env_to_module, LeanEnvToModule) == lean
        it.begin_at(0, 1, 0)
        chunks = [chunk for _ in range(3) for chunk in it.sample(num_timesteps=50)]
        runs.append(
            [
                (
                    chunk.get_observations().tolist(),
                    chunk.get_actions().tolist(),
                    chunk.get_rewards().tolist(),
                    {k: chunk.get_extra_model_outputs(k).tolist() for k in sorted(chunk.extra_model_outputs)},
                    (chunk.is_terminated, len(chunk), chunk.get_actions().dtype, chunk.t_started),
                )
                for chunk in chunks
            ]
        )
        it.stop()
        actions.append(CheapAnt.actions)
    assert runs[0] == runs[1] and actions[0] == actions[1]
    assert any(chunk[4][0] for chunk in runs[0]), "no episode ended"


def test_slippery_configures_slippery_ant_and_nothing_else() -> None:
    config = real_config(1)
    assert config.env_runner_cls is SlipperyEnvRunner
    assert issubclass(config.algo_class, GlobalStepAlgorithm) and issubclass(config.algo_class, PPO)
    assert slippery(config).algo_class is slippery(real_config(3)).algo_class is config.algo_class
    other = slippery(PPOConfig().environment("CartPole-v1"))
    assert other.env_runner_cls is PPOConfig().env_runner_cls and other.algo_class is PPO
    assert slippery(config.environment("CartPole-v1")).env_runner_cls is PPOConfig().env_runner_cls


def test_continual_configs_are_slippery_by_themselves() -> None:
    config = ContinualPPOConfig().environment("SlipperyAnt-v0")
    assert config.env_runner_cls is SlipperyEnvRunner and config.algo_class is ContinualPPO
    assert ContinualPPOConfig().environment("CartPole-v1").env_runner_cls is None
    with pytest.raises(InputError, match=r"^friction.low: "):
        ContinualPPOConfig().environment("SlipperyAnt-v0", env_config={"friction": {"low": -1}})


def test_the_schedules_seed_is_the_configs_unless_it_has_its_own() -> None:
    assert runner(0, 1, 1, seed=None).schedule.seed == 0
    assert runner(0, 1, 1, seed=9).schedule == FrictionSchedule(seed=9, period=100)
    config = cheap_config(1, 1).environment(env_config={"friction": {"seed": 3, "period": 7}})
    assert RecordingRunner(config=config, worker_index=1).schedule == FrictionSchedule(seed=3, period=7)


def test_bad_settings_are_refused_before_anything_is_built() -> None:
    with pytest.raises(InputError, match=r"^friction.period: "):
        slippery(PPOConfig().environment("SlipperyAnt-v0", env_config={"friction": {"period": 0}}))
    assert np.isfinite(SCHEDULE.friction(10**15))
