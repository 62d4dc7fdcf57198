"""Slippery Ant is PyBullet's Ant at friction 1.5, and another ant at any other."""

import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pybullet
import pybullet_envs_gymnasium  # noqa: F401  (registers AntBulletEnv-v0)
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

import rllib_ext  # noqa: F401  (registers SlipperyAnt-v0)
from cbp_ray.errors import InputError
from rllib_ext.ant import bullet, environment
from rllib_ext.ant.environment import SlipperyAnt, make
from rllib_ext.ant.friction import FrictionSchedule
from rllib_ext.ant.physics import PythonWorld

Environment = gymnasium.Env[Any, Any]


@pytest.fixture
def _python_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The physics through PyBullet's Python calls, which a test can make as well."""
    monkeypatch.setattr(environment, "make_world", PythonWorld)


@pytest.fixture
def ours() -> Iterator[Environment]:
    env = gymnasium.make("SlipperyAnt-v0")
    yield env
    env.close()


@pytest.fixture
def standard() -> Iterator[Environment]:
    env = gymnasium.make("AntBulletEnv-v0")
    yield env
    env.close()


def random_actions(seed: int, count: int, scale: float = 1.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-scale, scale, (count, 8)).astype(np.float32)


def set_standard_friction(env: Environment, value: float) -> None:
    """As somebody would who has only PyBullet's Ant."""
    robot = env.unwrapped.robot  # type: ignore[attr-defined]
    for link in range(-1, robot._p.getNumJoints(robot.objects[0])):
        robot._p.changeDynamics(robot.objects[0], link, lateralFriction=value)


def assert_same(ours: Environment, standard: Environment, actions: NDArray[np.float32], changes: dict[int, float]) -> int:
    """Steps both, resets both when an episode ends, and compares everything. Returns how many episodes ended."""
    episodes = 0
    for number, action in enumerate(actions):
        if number in changes:
            ours.unwrapped.friction = changes[number]  # type: ignore[attr-defined]
            set_standard_friction(standard, changes[number])
        comp, ref = ours.step(action), standard.step(action)
        np.testing.assert_array_equal(comp[0], ref[0], err_msg=f"observation {number}")
        assert comp[0].dtype == ref[0].dtype == np.float32
        assert comp[1:] == ref[1:], f"reward, termination or truncation {number}"
        if ref[2] or ref[3]:
            episodes += 1
            np.testing.assert_array_equal(ours.reset()[0], standard.reset()[0])
    return episodes


def test_at_standard_friction_it_is_the_standard_ant_bit_by_bit(ours: Environment, standard: Environment) -> None:
    assert ours.observation_space == standard.observation_space
    assert ours.action_space == standard.action_space
    np.testing.assert_array_equal(ours.reset(seed=3)[0], standard.reset(seed=3)[0])
    # Small actions to be truncated, actions beyond the limits to be clipped and to fall, a stretch of none at all.
    actions = [random_actions(1, 2500), random_actions(2, 1500, scale=4.0), random_actions(3, 300, scale=0.0)]
    assert assert_same(ours, standard, np.concatenate(actions), {}) >= 3


def test_pybullets_c_interface_is_the_one_that_is_known() -> None:
    assert bullet.serves()
    assert isinstance(bullet.make_world(), bullet.BulletWorld)


def test_an_unknown_c_interface_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bullet, "KNOWN_VERSIONS", ())
    assert not bullet.serves.__wrapped__()


@pytest.mark.usefixtures("_python_calls")
def test_through_python_calls_it_is_the_standard_ant_too(ours: Environment, standard: Environment) -> None:
    np.testing.assert_array_equal(ours.reset(seed=5)[0], standard.reset(seed=5)[0])
    assert_same(ours, standard, random_actions(6, 300, scale=2.0), {100: 0.1, 200: 1.5})
    assert isinstance(ours.unwrapped._world, PythonWorld)  # type: ignore[attr-defined]


def test_friction_may_change_at_any_step_and_is_that_of_the_robots_geoms(ours: Environment, standard: Environment) -> None:
    np.testing.assert_array_equal(ours.reset(seed=4)[0], standard.reset(seed=4)[0])
    changes = {100: 1e-4, 250: 1e4, 251: 0.02, 700: 1.5, 1100: 3.0}
    assert assert_same(ours, standard, random_actions(5, 1300), changes) >= 1


def run(env: Environment, seed: int | None, actions: NDArray[np.float32]) -> list[Any]:
    history: list[Any] = [env.reset(seed=seed)[0].tolist()]
    for action in actions:
        observation, reward, terminated, _, _ = env.step(action)
        history.append((observation.tolist(), reward, terminated))
    return history


def test_a_seed_fixes_everything_whatever_happened_before(ours: Environment) -> None:
    actions = random_actions(6, 150)
    first = run(ours, 8, actions)
    ours.unwrapped.friction = 0.01  # type: ignore[attr-defined]
    assert run(ours, 8, actions) != first
    assert run(ours, 9, actions) != first
    ours.unwrapped.friction = 1.5  # type: ignore[attr-defined]
    assert run(ours, 8, actions) == first
    other = SlipperyAnt()
    assert run(other, 8, actions) == first
    other.close()


@pytest.mark.parametrize("friction", [1.5, {"period": 60, "seed": 1}])
def test_an_episode_goes_on_bit_by_bit_in_another_environment(friction: Any) -> None:
    first, second = SlipperyAnt(friction), SlipperyAnt(friction)
    first.reset(seed=3)
    for action in random_actions(11, 100):
        first.step(action)
    second.reset(seed=4)
    for action in random_actions(12, 70):
        second.step(action)
    second.load_state_dict(first.state_dict())
    for number, action in enumerate(random_actions(13, 150)):
        ref, comp = first.step(action), second.step(action)
        np.testing.assert_array_equal(comp[0], ref[0])
        assert comp[1:] == ref[1:] and first.friction == second.friction
        if number == 75:
            np.testing.assert_array_equal(first.reset()[0], second.reset()[0])
    first.close()
    second.close()


def test_environments_side_by_side_do_not_touch_each_other(ours: Environment) -> None:
    actions = random_actions(7, 60)
    alone = run(ours, 1, actions)
    other = SlipperyAnt(friction=1e-3)
    ours.reset(seed=1)
    other.reset(seed=2)
    together = []
    for action in actions:
        observation, reward, terminated, _, _ = ours.step(action)
        together.append((observation.tolist(), reward, terminated))
        other.step(action)
    assert together == alone[1:]
    other.close()


def test_alone_it_follows_its_schedule_by_its_own_steps() -> None:
    schedule = FrictionSchedule(seed=2, period=25)
    env = SlipperyAnt(friction={"seed": 2, "period": 25})
    env.reset(seed=0)
    for step, action in enumerate(random_actions(8, 110, scale=0.1)):
        if step == 60:
            env.reset()
        env.step(action)
        assert env.friction == schedule.friction(step)
        assert env._world is not None and env._world.friction == env.friction
    env.friction = 0.7
    for action in random_actions(8, 30, scale=0.1):
        env.step(action)
    assert env.friction == 0.7
    env.close()


@pytest.mark.usefixtures("_python_calls")
def test_a_slippery_floor_slows_the_ant_down() -> None:
    """A robot thrown sideways stops where friction is high and slides on where it is low."""
    distance = {}
    for friction in (1e-4, 1.5):
        env = SlipperyAnt(friction)
        env.reset(seed=0)
        world = env._world
        assert isinstance(world, PythonWorld)
        for _ in range(60):
            env.step(np.zeros(8, np.float32))
        pybullet.resetBaseVelocity(world.ant, [0, 3, 0], physicsClientId=world.client)
        before = pybullet.getBasePositionAndOrientation(world.ant, physicsClientId=world.client)[0][1]
        for _ in range(60):
            env.step(np.zeros(8, np.float32))
        distance[friction] = pybullet.getBasePositionAndOrientation(world.ant, physicsClientId=world.client)[0][1] - before
        env.close()
    assert distance[1e-4] > 2 * distance[1.5]


def test_gymnasiums_checker_is_content() -> None:
    env = gymnasium.make("SlipperyAnt-v0", render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The original's spaces: observations are within 5, but that is not what it declares.
        warnings.filterwarnings("ignore", message=r".*A Box observation space (minimum|maximum) value is.*infinity")
        check_env(env.unwrapped)
    env.close()


def test_an_episode_is_truncated_after_1000_steps(ours: Environment) -> None:
    for env in (ours, made := make({"friction": 1.5})):
        env.reset(seed=0)
        # Whether it has fallen does not matter here.
        truncated = [env.step(np.zeros(8, np.float32))[3] for _ in range(1000)]
        assert truncated == [False] * 999 + [True]
    made.close()


def test_pictures_need_no_screen_and_show_the_ant_move() -> None:
    env = gymnasium.make("SlipperyAnt-v0", render_mode="rgb_array")
    env.reset(seed=0)
    first: Any = env.render()
    assert first.shape == (240, 320, 3) and first.dtype == np.uint8
    assert first.std() > 10
    for action in random_actions(9, 20):
        env.step(action)
    later: Any = env.render()
    assert (later != first).mean() > 0.01
    env.close()


@pytest.mark.usefixtures("_python_calls")
def test_closing_frees_the_physics_client() -> None:
    connected = lambda: [c for c in range(1024) if pybullet.isConnected(c)]  # noqa: E731
    before = connected()
    for number in range(200):
        env = SlipperyAnt()
        env.reset(seed=number)
        env.step(np.zeros(8, np.float32))
        assert len(connected()) == len(before) + 1
        env.close()
        env.close()
        assert connected() == before
    forgotten = SlipperyAnt()
    forgotten.reset()
    del forgotten
    assert connected() == before


def test_closing_twice_and_forgetting_do_no_harm() -> None:
    for number in range(20):
        env = SlipperyAnt()
        env.reset(seed=number)
        env.step(np.zeros(8, np.float32))
        env.close()
        env.close()
    forgotten = SlipperyAnt()
    forgotten.reset()
    closing = forgotten._world.close  # type: ignore[union-attr]
    del forgotten
    assert not closing.alive


def test_a_closed_environment_starts_anew_with_its_friction() -> None:
    env = SlipperyAnt(friction=0.2)
    actions = random_actions(10, 30)
    first = run(env, 1, actions)
    env.close()
    assert run(env, 1, actions) == first
    env.close()


def test_bad_input_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"^friction: .*-1"):
        SlipperyAnt(friction=-1)
    with pytest.raises(InputError, match=r"^friction.perod: unknown setting"):
        SlipperyAnt(friction={"perod": 1})
    with pytest.raises(InputError, match=r"^render_mode: must be None or 'rgb_array', got 'human'"):
        SlipperyAnt(render_mode="human")
    env = SlipperyAnt()
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset first"):
        env.step(np.zeros(8, np.float32))
    env.reset(seed=0)
    for action in (np.full(8, np.nan), np.zeros(7), np.full(8, np.inf)):
        with pytest.raises(InputError, match=r"^action: must be 8 finite numbers"):
            env.step(action.astype(np.float32))
    with pytest.raises(InputError, match=r"^friction: .*nan"):
        env.friction = float("nan")
    env.close()


@pytest.mark.usefixtures("_python_calls")
def test_a_blown_up_simulation_ends_the_episode_with_finite_numbers() -> None:
    env = SlipperyAnt()
    env.reset(seed=0)
    world = env._world
    assert isinstance(world, PythonWorld)
    pybullet.resetBaseVelocity(world.ant, [float("nan")] * 3, physicsClientId=world.client)
    observation, reward, terminated, _, _ = env.step(np.zeros(8, np.float32))
    assert terminated and np.isfinite(observation).all() and np.isfinite(reward)
    env.close()
