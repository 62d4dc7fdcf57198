"""Slippery Ant (section 2 of the paper): PyBullet's Ant, with a friction that changes.

At friction 1.5 this is `AntBulletEnv-v0` of `pybullet_envs_gymnasium`, to the last bit of every observation and reward, but
twice as fast: what the original asks the physics engine for body by body is asked in a few batched calls. Where the
arithmetic looks roundabout, it follows the original's order of operations or its mixture of float32 and float64.
"""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pybullet
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray
from ray.tune.registry import register_env

from cbp_ray.errors import InputError
from cbp_ray.kernels.compilation import compile_cached
from rllib_ext.ant.bullet import make_world
from rllib_ext.ant.friction import FrictionSchedule, constant_friction
from rllib_ext.ant.physics import ANGLES, FEET, JOINTS, PARTS, QUATERNION, STEP_SECONDS, TORSO, VELOCITY, World

ENVIRONMENT = "SlipperyAnt-v0"
"""Name of the environment for Gymnasium and Ray Tune, known as soon as `rllib_ext` is imported."""

TARGET_X = 1e3
"""The ant is to run in the direction of x: the target is a kilometre away."""
OBSERVATIONS = 8 + 2 * JOINTS + 4
LEAST_HEIGHT = np.float32(0.26)
"""An episode ends when the torso, a sphere of radius 0.25, is below."""

ELECTRICITY_COST = -2.0
STALL_TORQUE_COST = -0.1
JOINTS_AT_LIMIT_COST = -0.1
LARGEST = np.float32(5)
"""Observations are clipped to ± this."""
AT_LIMIT = np.float32(0.99)
"""A joint whose scaled angle is beyond ± this is at its limit."""


class SlipperyAnt(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """A four-legged robot that is to run.

    Observations: 28 numbers (height, direction to the target, velocity, roll and pitch, angle and speed of 8 joints, contacts
    of 4 feet as of the step before). Actions: 8 torques in [-1, 1]. Reward: progress in metres per step's seconds, 1 for being
    alive, costs of electricity and of joints at their limits.

    A reset with a seed starts as a new environment does, whatever happened before, so a seed and the actions fix everything.
    (The original's very first episode differs from its later ones: the resting place of the floor counts as a part of the
    robot from its first step on, but not yet in its first observation. Here it is so after each reset with a seed.)

    Args:
      friction: what friction holds when. A number: always that. Settings of `FrictionSchedule`: by the number of steps that
        this environment has made. Either way, an assignment to `friction` takes over from then on.
      render_mode: None or `rgb_array`; needs no screen.

    Raises:
      InputError: one line with field, rule, value and fix.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012  (Gymnasium declares it so)

    def __init__(
        self, friction: FrictionSchedule | Mapping[str, Any] | float | None = None, render_mode: str | None = None
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise InputError(f"render_mode: must be None or 'rgb_array', got {render_mode!r}; choose one of them")
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (JOINTS,), np.float32)
        self.schedule: FrictionSchedule | None = FrictionSchedule.make(friction)
        self.steps = 0
        """Number of steps since this environment was made."""
        self._friction = self.schedule.friction(0)
        self._next_change = self.schedule.next_change(0)
        self._rotation, self._to_target, self._angles, self._torso = np.eye(3), np.empty(2), np.empty(2), np.empty(8)
        self._feet, self._speeds = np.zeros(4), np.empty(JOINTS, np.float32)
        self._world: World | None = None

    @property
    def friction(self) -> float:
        """Lateral friction of the robot's geoms. May be set at any time; from then on no schedule applies."""
        return self._friction

    @friction.setter
    def friction(self, value: float) -> None:
        self.schedule = None
        self._set_friction(constant_friction(value))

    @property
    def distance(self) -> float:
        """Metres from the start to the torso, in the direction in which the ant is to run."""
        return float(self._running("distance").sight[TORSO.start])

    def _set_friction(self, value: float) -> None:
        self._friction = value
        if self._world is not None:
            self._world.set_friction(value)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode: joints within 0.1 of their zero positions."""
        super().reset(seed=seed)
        as_new = seed is not None or self._world is None
        world = self._world = self._world or make_world()
        world.set_friction(self._friction)
        world.restart(self.np_random.uniform(-0.1, 0.1, JOINTS).tolist())
        self._feet[:] = 0.0
        self._initial_z = float(world.sight[TORSO.stop - 1])
        self._potential, torso = self._face_target(world, floor_counts=not as_new)
        observation = np.empty(OBSERVATIONS, np.float32)
        _observe(world.sight, world.limits, torso, self._feet, observation, np.empty(JOINTS, np.float32))
        return observation, {}

    def _running(self, method: str) -> World:
        if self._world is None:
            raise ResetNeeded(f"SlipperyAnt.{method}: must follow reset, got no reset yet; call reset first")
        return self._world

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """One step of 1/60 s. An episode that lasts has no end here: `gymnasium.make` limits it to 1000 steps."""
        world = self._running("step")
        if self.schedule is not None and self.steps >= self._next_change:
            self._set_friction(self.schedule.friction(self.steps))
            self._next_change = self.schedule.next_change(self.steps)
        self.steps += 1

        action = np.ascontiguousarray(action)
        if action.shape != (JOINTS,) or not math.isfinite(sum(action.tolist())):
            raise InputError(f"action: must be {JOINTS} finite numbers, got {action.tolist()}; check the policy for NaN")
        world.advance(action)

        potential, torso = self._face_target(world, floor_counts=True)
        progress, self._potential = potential - self._potential, potential
        observation, speeds = np.empty(OBSERVATIONS, np.float32), self._speeds
        at_limit, total = _observe(world.sight, world.limits, torso, self._feet, observation, speeds)
        self._feet[:] = world.sight[FEET]
        alive, electricity, stall_torque = _judge(observation, speeds, action, self._initial_z)
        reward: float = alive + progress
        reward += ELECTRICITY_COST * (electricity / JOINTS) + STALL_TORQUE_COST * (stall_torque / JOINTS)
        reward += JOINTS_AT_LIMIT_COST * at_limit
        if not math.isfinite(reward + total):
            # The physics blew up. The original ends the episode too, but hands out what would spoil every network.
            return np.nan_to_num(observation), -1.0, True, False, {}
        return observation, reward, alive < 0, False, {}

    def _face_target(self, world: World, floor_counts: bool) -> tuple[float, NDArray[np.float64]]:
        """The potential (minus the distance to the target, per step's seconds) and the torso's part of the observation."""
        sight, to_target, angles, torso = world.sight, self._to_target, self._angles, self._torso
        _aim(sight, floor_counts, to_target)
        roll, pitch, yaw = pybullet.getEulerFromQuaternion(sight[QUATERNION].tolist())
        angles[0], angles[1] = -yaw, np.arctan2(to_target[0], to_target[1]) - yaw
        (sine, across), (cosine, ahead) = np.sin(angles).tolist(), np.cos(angles).tolist()
        rotation = self._rotation
        rotation[0, 0] = rotation[1, 1] = cosine
        rotation[0, 1], rotation[1, 0] = -sine, sine
        # The velocity as seen from the body.
        vx, vy, vz = rotation.dot(sight[VELOCITY]).tolist()
        z = float(sight[TORSO.stop - 1])
        torso[:] = (z - self._initial_z, across, ahead, 0.3 * vx, 0.3 * vy, 0.3 * vz, roll, pitch)
        return -math.sqrt(to_target.dot(to_target)) / STEP_SECONDS, torso

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """The robot from behind, 320 x 240, drawn in software; None without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("SlipperyAnt.render: must have a render mode, got None; make it with render_mode='rgb_array'")
            return None
        return self._running("render").picture()

    def state_dict(self) -> dict[str, Any]:
        """Everything, in the middle of an episode too: from here on, `load_state_dict` in another process does the same.

        Raises:
          ResetNeeded: if there is no episode yet.
        """
        return {
            "physics": self._running("state_dict").save(),
            "random": self.np_random.bit_generator.state,
            "steps": self.steps,
            "friction": self._friction,
            "scheduled": self.schedule is not None,
            "feet": self._feet.tolist(),
            "initial_z": self._initial_z,
            "potential": self._potential,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`, for an environment that was made with the same settings."""
        world = self._world = self._world or make_world()
        self.steps, self._friction = state["steps"], state["friction"]
        if not state["scheduled"]:
            self.schedule = None
        elif self.schedule is not None:
            self._next_change = self.schedule.next_change(max(self.steps - 1, 0))
        world.set_friction(self._friction)
        world.load(state["physics"])
        self.np_random.bit_generator.state = state["random"]
        self._feet[:], self._initial_z, self._potential = state["feet"], state["initial_z"], state["potential"]

    def close(self) -> None:
        """Frees the physics engine. A reset would start another."""
        if self._world is not None:
            self._world.close()
            self._world = None


@compile_cached
def _aim(sight: NDArray[np.float64], floor_counts: bool, to_target: NDArray[np.float64]) -> None:
    """Writes where the target is, y first, as seen from the mean of all parts, in NumPy's order of additions."""
    for axis in range(2):
        v = sight[PARTS * axis : PARTS * (axis + 1)]
        total = ((v[0] + v[8]) + (v[1] + v[9])) + ((v[2] + v[10]) + (v[3] + v[11]))
        total += ((v[4] + v[12]) + (v[5] + v[13])) + ((v[6] + v[14]) + (v[7] + v[15]))
        for part in range(16, PARTS):
            total += v[part]
        # The floor rests at zero.
        mean = total / (PARTS + floor_counts)
        to_target[1 - axis] = (TARGET_X if axis == 0 else 0.0) - mean


@compile_cached
def _observe(
    sight: NDArray[np.float64],
    limits: NDArray[np.float64],
    torso: NDArray[np.float64],
    feet: NDArray[np.float64],
    observation: NDArray[np.float32],
    speeds: NDArray[np.float32],
) -> tuple[int, float]:
    """Writes the observation, and the joints' speeds before they are clipped.

    Returns:
      The number of joints at their limit, and the sum of the observation, which is finite if all of it is.
    """
    at_limit, total = 0, 0.0
    for k in range(len(observation)):
        joint = (k - 8) // 2
        if k < 8:
            value = np.float32(torso[k])
        elif k >= 8 + 2 * JOINTS:
            value = np.float32(feet[k - 8 - 2 * JOINTS])
        elif k % 2 == 0:
            value = np.float32(2 * (sight[ANGLES.start + k - 8] - limits[joint, 0]) / limits[joint, 1] - 1.0)
            at_limit += int(abs(value) > AT_LIMIT)
        else:
            value = np.float32(0.1 * sight[ANGLES.start + k - 8])
            speeds[joint] = value
        # Not-a-number stays what it is.
        observation[k] = LARGEST if value > LARGEST else -LARGEST if value < -LARGEST else value
        total += observation[k]
    return at_limit, total


@compile_cached
def _judge(
    observation: NDArray[np.float32], speeds: NDArray[np.float32], action: NDArray[Any], initial_z: float
) -> tuple[float, float, float]:
    """What the reward is made of, in the original's types and order of additions.

    Returns:
      1 or -1, whether it is alive, and the sums of |torque · speed| and of squared torques.
    """
    alive = 1.0 if observation[0] + np.float32(initial_z) > LEAST_HEIGHT else -1.0
    power, squares = np.abs(action * speeds), action * action
    electricity = ((power[0] + power[1]) + (power[2] + power[3])) + ((power[4] + power[5]) + (power[6] + power[7]))
    stall = ((squares[0] + squares[1]) + (squares[2] + squares[3])) + ((squares[4] + squares[5]) + (squares[6] + squares[7]))
    return alive, float(electricity), float(stall)


def make(config: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment for RLlib, from its `env_config`: with the limit on steps, without checks of every call."""
    return gymnasium.make(ENVIRONMENT, disable_env_checker=True, **config)


gymnasium.register(ENVIRONMENT, f"{__name__}:{SlipperyAnt.__name__}", reward_threshold=2500.0, max_episode_steps=1000)
register_env(ENVIRONMENT, make)
