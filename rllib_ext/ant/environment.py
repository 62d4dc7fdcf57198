"""Slippery Ant (section 2 of the paper): PyBullet's Ant, with a friction that changes.

At friction 1.5 this is `AntBulletEnv-v0` of `pybullet_envs_gymnasium`, to the last bit of every observation and reward, but
twice as fast: what the original asks the physics engine for body by body is asked in a few batched calls. Where the
arithmetic looks roundabout, it follows the original's order of operations or its mixture of float32 and float64.
"""

import math
import os
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import pybullet
import pybullet_data
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray
from ray.tune.registry import register_env

from cbp_ray.errors import InputError
from cbp_ray.kernels.compilation import compile_cached
from rllib_ext.ant.friction import FrictionSchedule, constant_friction

ENVIRONMENT = "SlipperyAnt-v0"
"""Name of the environment for Gymnasium and Ray Tune, known as soon as `rllib_ext` is imported."""

STANDARD_FRICTION = 1.5
"""Friction of the robot's geoms in PyBullet's file. The ground's is 0.8; what acts between them is the product."""
FRAME_SKIP = 4
STEP_SECONDS = (0.0165 / FRAME_SKIP) * FRAME_SKIP
JOINTS = 8
TORQUE = 2.5 * 100.0
TARGET_X = 1e3
"""The ant is to run in the direction of x: the target is a kilometre away."""
LEAST_HEIGHT = np.float32(0.26)
"""An episode ends when the torso, a sphere of radius 0.25, is below."""

ELECTRICITY_COST = -2.0
STALL_TORQUE_COST = -0.1
JOINTS_AT_LIMIT_COST = -0.1
LARGEST = np.float32(5)
"""Observations are clipped to ± this."""
AT_LIMIT = np.float32(0.99)
"""A joint whose scaled angle is beyond ± this is at its limit."""

RENDER_WIDTH, RENDER_HEIGHT = 320, 240

Places = tuple[float, ...]
"""One coordinate of each part of the ant."""


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
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (8 + 2 * JOINTS + 4,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (JOINTS,), np.float32)
        self.schedule: FrictionSchedule | None = FrictionSchedule.make(friction)
        self.steps = 0
        """Number of steps since this environment was made."""
        self._friction = self.schedule.friction(0)
        self._next_change = self.schedule.next_change(0)
        self._rotation, self._to_target, self._angles = np.eye(3), np.empty(2), np.empty(2)
        self._numbers = np.empty(self.observation_space.shape or ())
        self._world: _World | None = None

    @property
    def friction(self) -> float:
        """Lateral friction of the robot's geoms. May be set at any time; from then on no schedule applies."""
        return self._friction

    @friction.setter
    def friction(self, value: float) -> None:
        self.schedule = None
        self._set_friction(constant_friction(value))

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
        world = self._world = self._world or _World()
        world.set_friction(self._friction)
        world.restart(self.np_random.uniform(-0.1, 0.1, JOINTS).tolist())
        self._feet = [0.0, 0.0, 0.0, 0.0]
        self._initial_z = world.height()
        self._potential = self._observe(world, floor_counts=not as_new)
        return np.minimum(np.maximum(self._numbers.astype(np.float32), -LARGEST), LARGEST), {}

    def _running(self, method: str) -> "_World":
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

        action = np.asarray(action)
        torques = action.tolist()
        if action.shape != (JOINTS,) or not math.isfinite(sum(torques)):
            raise InputError(f"action: must be {JOINTS} finite numbers, got {torques}; check the policy for NaN")
        world.advance([TORQUE * (1.0 if torque > 1.0 else -1.0 if torque < -1.0 else torque) for torque in torques])

        potential = self._observe(world, floor_counts=True)
        progress, self._potential = potential - self._potential, potential
        self._feet = world.feet_on_ground()
        observation = np.empty(len(self._numbers), np.float32)
        alive, electricity, stall_torque, at_limit, total = _judge(self._numbers, action, self._initial_z, observation)
        reward: float = alive + progress
        reward += ELECTRICITY_COST * (electricity / JOINTS) + STALL_TORQUE_COST * (stall_torque / JOINTS)
        reward += JOINTS_AT_LIMIT_COST * at_limit
        if not math.isfinite(reward + total):
            # The physics blew up. The original ends the episode too, but hands out what would spoil every network.
            return np.nan_to_num(observation), -1.0, True, False, {}
        return observation, reward, alive < 0, False, {}

    def _observe(self, world: "_World", floor_counts: bool) -> float:
        """Writes the observation before it is clipped; returns the potential: minus the distance to the target, per second."""
        joints, xs, ys, (_, _, z), quaternion, velocity = world.state()
        # The floor rests at zero.
        parts = len(xs) + floor_counts
        to_target, angles = self._to_target, self._angles
        to_target[0], to_target[1] = 0.0 - _sum(ys) / parts, TARGET_X - _sum(xs) / parts
        roll, pitch, yaw = pybullet.getEulerFromQuaternion(quaternion)
        angles[0], angles[1] = -yaw, np.arctan2(to_target[0], to_target[1]) - yaw
        (sine, across), (cosine, ahead) = np.sin(angles).tolist(), np.cos(angles).tolist()
        rotation = self._rotation
        rotation[0, 0] = rotation[1, 1] = cosine
        rotation[0, 1], rotation[1, 0] = -sine, sine
        # The velocity as seen from the body.
        vx, vy, vz = rotation.dot(velocity).tolist()
        torso = (z - self._initial_z, across, ahead, 0.3 * vx, 0.3 * vy, 0.3 * vz, roll, pitch)
        self._numbers[:] = [*torso, *joints, *self._feet]
        return -math.sqrt(to_target.dot(to_target)) / STEP_SECONDS

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
            "feet": list(self._feet),
            "initial_z": self._initial_z,
            "potential": self._potential,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`, for an environment that was made with the same settings."""
        world = self._world = self._world or _World()
        self.steps, self._friction = state["steps"], state["friction"]
        if not state["scheduled"]:
            self.schedule = None
        elif self.schedule is not None:
            self._next_change = self.schedule.next_change(max(self.steps - 1, 0))
        world.set_friction(self._friction)
        world.load(state["physics"])
        self.np_random.bit_generator.state = state["random"]
        self._feet, self._initial_z, self._potential = list(state["feet"]), state["initial_z"], state["potential"]

    def close(self) -> None:
        """Frees the physics engine. A reset would start another."""
        if self._world is not None:
            self._world.close()
            self._world = None


@compile_cached
def _judge(
    numbers: NDArray[np.float64], action: NDArray[Any], initial_z: float, observation: NDArray[np.float32]
) -> tuple[float, float, float, int, float]:
    """Writes the observation, and returns what the reward is made of.

    Returns:
      1 or -1, whether it is alive; the sums of |torque · speed| and of squared torques, in the original's types and order of
      additions; the number of joints at their limit; the sum of the observation, which is finite if all of it is.
    """
    total = 0.0
    for i in range(len(numbers)):
        value = np.float32(numbers[i])
        # Not-a-number stays what it is.
        observation[i] = LARGEST if value > LARGEST else -LARGEST if value < -LARGEST else value
        total += observation[i]
    alive = 1.0 if observation[0] + np.float32(initial_z) > LEAST_HEIGHT else -1.0
    at_limit = 0
    power = np.abs(action * numbers[9:24:2].astype(np.float32))
    squares = action * action
    for i in range(JOINTS):
        at_limit += abs(observation[8 + 2 * i]) > AT_LIMIT
    electricity = ((power[0] + power[1]) + (power[2] + power[3])) + ((power[4] + power[5]) + (power[6] + power[7]))
    stall = ((squares[0] + squares[1]) + (squares[2] + squares[3])) + ((squares[4] + squares[5]) + (squares[6] + squares[7]))
    return alive, float(electricity), float(stall), at_limit, total


def _sum(v: Sequence[float]) -> float:
    """The sum of 16 to 23 numbers in NumPy's order of additions, without an array: eight partial sums, then what is left."""
    total = ((v[0] + v[8]) + (v[1] + v[9])) + ((v[2] + v[10]) + (v[3] + v[11]))
    total += ((v[4] + v[12]) + (v[5] + v[13])) + ((v[6] + v[14]) + (v[7] + v[15]))
    for value in v[16:]:
        total += value
    return total


class _World:
    """The physics: a floor, the ant, and the calls to PyBullet. Each has an engine of its own."""

    def __init__(self) -> None:
        self.client = pybullet.connect(pybullet.DIRECT)
        if self.client < 0:
            raise InputError("SlipperyAnt: must get one of PyBullet's 1024 engines, got none; close environments that are done")
        # Also when nobody calls close.
        self.close = weakref.finalize(self, pybullet.disconnect, self.client)
        here = {"physicsClientId": self.client}
        pybullet.setPhysicsEngineParameter(
            fixedTimeStep=STEP_SECONDS, numSolverIterations=5, numSubSteps=FRAME_SKIP, deterministicOverlappingPairs=1, **here
        )
        pybullet.setDefaultContactERP(0.9, **here)
        pybullet.setGravity(0, 0, -9.8, **here)
        data = pybullet_data.getDataPath()
        (self.floor,) = pybullet.loadSDF(os.path.join(data, "plane_stadium.sdf"), **here)
        pybullet.changeDynamics(self.floor, -1, lateralFriction=0.8, restitution=0.5, **here)
        flags = pybullet.URDF_USE_SELF_COLLISION | pybullet.URDF_USE_SELF_COLLISION_EXCLUDE_ALL_PARENTS
        flags |= pybullet.URDF_GOOGLEY_UNDEFINED_COLORS
        (self.ant,) = pybullet.loadMJCF(os.path.join(data, "mjcf", "ant.xml"), flags=flags, **here)

        infos = [pybullet.getJointInfo(self.ant, joint, **here) for joint in range(pybullet.getNumJoints(self.ant, **here))]
        self.links = [info[0] for info in infos]
        self.joints = [info[0] for info in infos if not info[1].startswith(b"jointfix")]
        self.limits = [(info[8], info[9] - info[8]) for info in infos if info[0] in self.joints]
        self.feet = [info[0] for info in infos if info[12].endswith(b"_foot")]
        # Links of moving joints are empty, with PyBullet's own friction. (To ask them for their shapes crashes the process.)
        frictions = {link: pybullet.getDynamicsInfo(self.ant, link, **here)[1] for link in (-1, *self.links)}
        self.geoms = [link for link, friction in frictions.items() if friction == STANDARD_FRICTION]
        for link in self.links:
            pybullet.setJointMotorControl2(
                self.ant, link, pybullet.POSITION_CONTROL, positionGain=0.1, velocityGain=0.1, force=0, **here
            )
        self.friction = STANDARD_FRICTION
        self.start = pybullet.saveState(**here)

    def set_friction(self, value: float) -> None:
        """Sets the friction of every part of the ant that can touch something."""
        if value != self.friction:
            for link in self.geoms:
                pybullet.changeDynamics(self.ant, link, lateralFriction=value, physicsClientId=self.client)
            self.friction = value

    def restart(self, positions: list[float]) -> None:
        """Puts everything at rest where it was at first, with the joints at these positions."""
        pybullet.restoreState(self.start, physicsClientId=self.client)
        for joint, position in zip(self.joints, positions, strict=True):
            pybullet.resetJointState(self.ant, joint, position, 0, physicsClientId=self.client)

    def save(self) -> NDArray[np.uint8]:
        """The state of the simulation, with its contacts, as Bullet writes it to a file."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ant.bullet")
            pybullet.saveBullet(path, physicsClientId=self.client)
            return np.fromfile(path, dtype=np.uint8)

    def load(self, state: NDArray[np.uint8]) -> None:
        """The inverse of `save`."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ant.bullet")
            state.tofile(path)
            pybullet.restoreState(fileName=path, physicsClientId=self.client)

    def advance(self, torques: list[float]) -> None:
        """One step with these torques at the joints."""
        pybullet.setJointMotorControlArray(
            self.ant, self.joints, pybullet.TORQUE_CONTROL, forces=torques, physicsClientId=self.client
        )
        pybullet.stepSimulation(physicsClientId=self.client)

    def height(self) -> float:
        """Height of the torso above the floor."""
        return float(pybullet.getBasePositionAndOrientation(self.ant, physicsClientId=self.client)[0][2])

    def state(self) -> tuple[list[float], Places, Places, tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        """Angle and speed of each joint, scaled; x and y of all parts; place, orientation and velocity of the torso."""
        client, ant = self.client, self.ant
        joints: list[float] = []
        states = pybullet.getJointStates(ant, self.joints, physicsClientId=client)
        for state, (lower, extent) in zip(states, self.limits, strict=True):
            joints += (2 * (state[0] - lower) / extent - 1.0, 0.1 * state[1])
        torso, quaternion = pybullet.getBasePositionAndOrientation(ant, physicsClientId=client)
        first, *others = pybullet.getLinkStates(ant, self.links, physicsClientId=client)
        # The original's order of parts, in which it sums: the torso comes second.
        xs, ys, _ = zip(first[0], torso, *[link[0] for link in others], strict=True)
        velocity = pybullet.getBaseVelocity(ant, physicsClientId=client)[0]
        return joints, xs, ys, torso, quaternion, velocity

    def feet_on_ground(self) -> list[float]:
        """1 for each foot that touches the floor, 0 for the others."""
        touching = {point[3] for point in pybullet.getContactPoints(self.ant, self.floor, physicsClientId=self.client)}
        return [1.0 if foot in touching else 0.0 for foot in self.feet]

    def picture(self) -> NDArray[np.uint8]:
        """A picture from behind: red, green and blue, `[height, width, 3]`."""
        torso, _ = pybullet.getBasePositionAndOrientation(self.ant, physicsClientId=self.client)
        view = pybullet.computeViewMatrixFromYawPitchRoll(torso, distance=3, yaw=0, pitch=-30, roll=0, upAxisIndex=2)
        lens = pybullet.computeProjectionMatrixFOV(fov=60, aspect=RENDER_WIDTH / RENDER_HEIGHT, nearVal=0.1, farVal=100.0)
        image = pybullet.getCameraImage(
            RENDER_WIDTH, RENDER_HEIGHT, view, lens, renderer=pybullet.ER_TINY_RENDERER, physicsClientId=self.client
        )[2]
        return np.reshape(np.asarray(image, dtype=np.uint8), (RENDER_HEIGHT, RENDER_WIDTH, 4))[:, :, :3]


def make(config: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment for RLlib, from its `env_config`: with the limit on steps, without checks of every call."""
    return gymnasium.make(ENVIRONMENT, disable_env_checker=True, **config)


gymnasium.register(ENVIRONMENT, f"{__name__}:{SlipperyAnt.__name__}", reward_threshold=2500.0, max_episode_steps=1000)
register_env(ENVIRONMENT, make)
