"""The physics of Slippery Ant: a floor, the ant, what can be done to them and seen of them, through PyBullet's Python calls.

`rllib_ext.ant.bullet` does the same, to the last bit, without Python between PyBullet and the numbers.
"""

import os
import tempfile
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import pybullet
import pybullet_data
from numpy.typing import NDArray

from cbp_ray.errors import InputError

STANDARD_FRICTION = 1.5
"""Friction of the robot's geoms in PyBullet's file. The ground's is 0.8; what acts between them is the product."""
FLOOR_FRICTION, FLOOR_RESTITUTION = 0.8, 0.5
FRAME_SKIP = 4
STEP_SECONDS = (0.0165 / FRAME_SKIP) * FRAME_SKIP
SOLVER_ITERATIONS, CONTACT_ERP, GRAVITY = 5, 0.9, -9.8
MOTOR_GAIN = 0.1
"""Gains of the joints' motors, which have no force: only their torques act."""
FLOOR_FILE = os.path.join(pybullet_data.getDataPath(), "plane_stadium.sdf")
ANT_FILE = os.path.join(pybullet_data.getDataPath(), "mjcf", "ant.xml")
FLAGS = (
    pybullet.URDF_USE_SELF_COLLISION
    | pybullet.URDF_USE_SELF_COLLISION_EXCLUDE_ALL_PARENTS
    | pybullet.URDF_GOOGLEY_UNDEFINED_COLORS
)
JOINTS, PARTS = 8, 21
TORQUE = 2.5 * 100.0
RENDER_WIDTH, RENDER_HEIGHT = 320, 240

# Where things stand in `World.sight`.
XS, YS = slice(0, PARTS), slice(PARTS, 2 * PARTS)
TORSO = slice(YS.stop, YS.stop + 3)
QUATERNION = slice(TORSO.stop, TORSO.stop + 4)
VELOCITY = slice(QUATERNION.stop, QUATERNION.stop + 3)
ANGLES = slice(VELOCITY.stop, VELOCITY.stop + 2 * JOINTS)
FEET = slice(ANGLES.stop, ANGLES.stop + 4)


class World:
    """The physics, with an engine of its own."""

    friction: float = STANDARD_FRICTION
    sight: NDArray[np.float64]
    """What was seen last: x and y of all parts, the torso second; place, orientation and velocity of the torso; angle and speed
    of each joint; for each foot, 1 if it touches the floor."""
    limits: NDArray[np.float64]
    """Lower limit and extent of each joint's angle."""
    close: Any
    """Frees the engine; also called when nobody uses the world any more."""

    def set_friction(self, value: float) -> None:
        """Sets the friction of every part of the ant that can touch something."""
        raise NotImplementedError

    def restart(self, positions: list[float]) -> None:
        """Puts everything at rest where it was at first, with the joints at these positions, and looks."""
        raise NotImplementedError

    def simulate(self, action: NDArray[Any]) -> None:
        """One step with torques at the joints, from -1 to 1; what is beyond is clipped."""
        raise NotImplementedError

    def advance(self, action: NDArray[Any]) -> None:
        """One step as `simulate`, and a look."""
        raise NotImplementedError

    def save(self) -> NDArray[np.uint8]:
        """The state of the simulation, with its contacts, as Bullet writes it to a file."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ant.bullet")
            self._save(path)
            return np.fromfile(path, dtype=np.uint8)

    def load(self, state: NDArray[np.uint8]) -> None:
        """The inverse of `save`."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ant.bullet")
            state.tofile(path)
            self._load(path)

    def picture(self) -> NDArray[np.uint8]:
        """A picture from behind: red, green and blue, `[height, width, 3]`."""
        raise NotImplementedError

    def _save(self, path: str) -> None:
        raise NotImplementedError

    def _load(self, path: str) -> None:
        raise NotImplementedError


class PythonWorld(World):
    """The physics through PyBullet's Python calls."""

    def __init__(self) -> None:
        self.client = pybullet.connect(pybullet.DIRECT)
        if self.client < 0:
            raise InputError("SlipperyAnt: must get one of PyBullet's 1024 engines, got none; close environments that are done")
        # Also when nobody calls close.
        self.close = weakref.finalize(self, pybullet.disconnect, self.client)
        here = {"physicsClientId": self.client}
        pybullet.setPhysicsEngineParameter(
            fixedTimeStep=STEP_SECONDS,
            numSolverIterations=SOLVER_ITERATIONS,
            numSubSteps=FRAME_SKIP,
            deterministicOverlappingPairs=1,
            **here,
        )
        pybullet.setDefaultContactERP(CONTACT_ERP, **here)
        pybullet.setGravity(0, 0, GRAVITY, **here)
        (self.floor,) = pybullet.loadSDF(FLOOR_FILE, **here)
        pybullet.changeDynamics(self.floor, -1, lateralFriction=FLOOR_FRICTION, restitution=FLOOR_RESTITUTION, **here)
        (self.ant,) = pybullet.loadMJCF(ANT_FILE, flags=FLAGS, **here)

        self.infos = [
            pybullet.getJointInfo(self.ant, joint, **here) for joint in range(pybullet.getNumJoints(self.ant, **here))
        ]
        self.links = [info[0] for info in self.infos]
        self.joints = [info[0] for info in self.infos if not info[1].startswith(b"jointfix")]
        self.limits = np.array([(info[8], info[9] - info[8]) for info in self.infos if info[0] in self.joints])
        self.feet = [info[0] for info in self.infos if info[12].endswith(b"_foot")]
        # Links of moving joints are empty, with PyBullet's own friction. (To ask them for their shapes crashes the process.)
        frictions = {link: pybullet.getDynamicsInfo(self.ant, link, **here)[1] for link in (-1, *self.links)}
        self.geoms = [link for link, friction in frictions.items() if friction == STANDARD_FRICTION]
        for link in self.links:
            pybullet.setJointMotorControl2(
                self.ant, link, pybullet.POSITION_CONTROL, positionGain=MOTOR_GAIN, velocityGain=MOTOR_GAIN, force=0, **here
            )
        self.sight = np.zeros(FEET.stop)
        self.start = pybullet.saveState(**here)

    def set_friction(self, value: float) -> None:
        if value != self.friction:
            for link in self.geoms:
                pybullet.changeDynamics(self.ant, link, lateralFriction=value, physicsClientId=self.client)
            self.friction = value

    def restart(self, positions: list[float]) -> None:
        pybullet.restoreState(self.start, physicsClientId=self.client)
        for joint, position in zip(self.joints, positions, strict=True):
            pybullet.resetJointState(self.ant, joint, position, 0, physicsClientId=self.client)
        self._look()

    def simulate(self, action: NDArray[Any]) -> None:
        torques = [TORQUE * (1.0 if torque > 1.0 else -1.0 if torque < -1.0 else torque) for torque in action.tolist()]
        pybullet.setJointMotorControlArray(
            self.ant, self.joints, pybullet.TORQUE_CONTROL, forces=torques, physicsClientId=self.client
        )
        pybullet.stepSimulation(physicsClientId=self.client)

    def advance(self, action: NDArray[Any]) -> None:
        self.simulate(action)
        self._look()

    def _look(self) -> None:
        client, ant = self.client, self.ant
        states = pybullet.getJointStates(ant, self.joints, physicsClientId=client)
        torso, quaternion = pybullet.getBasePositionAndOrientation(ant, physicsClientId=client)
        first, *others = pybullet.getLinkStates(ant, self.links, physicsClientId=client)
        # The original's order of parts, in which it sums: the torso comes second.
        xs, ys, _ = zip(first[0], torso, *[link[0] for link in others], strict=True)
        velocity = pybullet.getBaseVelocity(ant, physicsClientId=client)[0]
        touching = {point[3] for point in pybullet.getContactPoints(ant, self.floor, physicsClientId=client)}
        feet = [1.0 if foot in touching else 0.0 for foot in self.feet]
        angles: Iterable[float] = [number for state in states for number in state[:2]]
        self.sight[:] = [*xs, *ys, *torso, *quaternion, *velocity, *angles, *feet]

    def _save(self, path: str) -> None:
        pybullet.saveBullet(path, physicsClientId=self.client)

    def _load(self, path: str) -> None:
        pybullet.restoreState(fileName=path, physicsClientId=self.client)

    def picture(self) -> NDArray[np.uint8]:
        torso, _ = pybullet.getBasePositionAndOrientation(self.ant, physicsClientId=self.client)
        view = pybullet.computeViewMatrixFromYawPitchRoll(torso, distance=3, yaw=0, pitch=-30, roll=0, upAxisIndex=2)
        lens = pybullet.computeProjectionMatrixFOV(fov=60, aspect=RENDER_WIDTH / RENDER_HEIGHT, nearVal=0.1, farVal=100.0)
        image = pybullet.getCameraImage(
            RENDER_WIDTH, RENDER_HEIGHT, view, lens, renderer=pybullet.ER_TINY_RENDERER, physicsClientId=self.client
        )[2]
        return np.reshape(np.asarray(image, dtype=np.uint8), (RENDER_HEIGHT, RENDER_WIDTH, 4))[:, :, :3]
