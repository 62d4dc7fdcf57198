"""The physics of Slippery Ant through PyBullet's C interface: a step and a look at everything in one compiled call.

The C functions are those of Bullet's `PhysicsClientC_API.h`, which PyBullet's library has and its Python calls are made of.
Python's part of a step costs half as much as the physics. `make_world` uses them where the library has them and a trial in this
process gives the same numbers as the Python calls; otherwise it takes those.
"""

import ctypes
import functools
import logging
import weakref
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import pybullet
from llvmlite import binding
from numba import types
from numpy.typing import NDArray

from cbp_ray.kernels.compilation import compile_cached
from rllib_ext.ant.physics import (
    ANGLES,
    ANT_FILE,
    CONTACT_ERP,
    FEET,
    FLAGS,
    FLOOR_FILE,
    FLOOR_FRICTION,
    FLOOR_RESTITUTION,
    FRAME_SKIP,
    GRAVITY,
    JOINTS,
    MOTOR_GAIN,
    PARTS,
    QUATERNION,
    SOLVER_ITERATIONS,
    STEP_SECONDS,
    TORQUE,
    TORSO,
    VELOCITY,
    PythonWorld,
    World,
)

LOGGER = logging.getLogger(__name__)

KNOWN_VERSIONS = ("3.2.7",)
"""Versions of PyBullet whose C interface this module follows."""
CONTACT_BYTES, LINK_OF_CONTACT = 176, 12
"""Size of `b3ContactPointData`, and where it has the link of the first body."""

# Pointers are whole numbers here.
P, N, D, S = ctypes.c_ssize_t, ctypes.c_int, ctypes.c_double, ctypes.c_char_p
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "b3ConnectPhysicsDirect": (P,),
    "b3DisconnectSharedMemory": (None, P),
    "b3SubmitClientCommandAndWaitStatus": (P, P, P),
    "b3InitPhysicsParamCommand": (P, P),
    "b3PhysicsParamSetTimeStep": (N, P, D),
    "b3PhysicsParamSetNumSolverIterations": (N, P, N),
    "b3PhysicsParamSetNumSubSteps": (N, P, N),
    "b3PhysicsParameterSetDeterministicOverlappingPairs": (N, P, N),
    "b3PhysicsParamSetDefaultContactERP": (N, P, D),
    "b3PhysicsParamSetGravity": (N, P, D, D, D),
    "b3LoadSdfCommandInit": (P, P, S),
    "b3LoadMJCFCommandInit": (P, P, S),
    "b3LoadMJCFCommandSetFlags": (None, P, N),
    "b3GetStatusBodyIndices": (N, P, ctypes.POINTER(N), N),
    "b3InitChangeDynamicsInfo": (P, P),
    "b3ChangeDynamicsInfoSetLateralFriction": (N, P, N, N, D),
    "b3ChangeDynamicsInfoSetRestitution": (N, P, N, N, D),
    "b3JointControlCommandInit2": (P, P, N, N),
    "b3JointControlSetDesiredPosition": (N, P, N, D),
    "b3JointControlSetKp": (N, P, N, D),
    "b3JointControlSetDesiredVelocity": (N, P, N, D),
    "b3JointControlSetKd": (N, P, N, D),
    "b3JointControlSetMaximumForce": (N, P, N, D),
    "b3CreatePoseCommandInit": (P, P, N),
    "b3CreatePoseCommandSetJointPosition": (N, P, P, N, D),
    "b3CreatePoseCommandSetJointVelocity": (N, P, P, N, D),
    "b3SaveStateCommandInit": (P, P),
    "b3GetStatusGetStateId": (N, P),
    "b3LoadStateCommandInit": (P, P),
    "b3LoadStateSetStateId": (N, P, N),
    "b3LoadStateSetFileName": (N, P, S),
    "b3SaveBulletCommandInit": (P, P, S),
}
"""Functions that are called rarely: result and arguments."""


def _external(name: str, result: Any, *arguments: Any) -> Any:
    return types.ExternalFunction(name, result(*arguments))


p, i32, f64 = types.intp, types.int32, types.float64
_submit = _external("b3SubmitClientCommandAndWaitStatus", p, p, p)
_control = _external("b3JointControlCommandInit2", p, p, i32, i32)
_set_torque = _external("b3JointControlSetDesiredForceTorque", i32, p, i32, f64)
_step = _external("b3InitStepSimulationCommand", p, p)
_request_contacts = _external("b3InitRequestContactPointInformation", p, p)
_contacts_of = _external("b3SetContactFilterBodyA", types.void, p, i32)
_contacts_with = _external("b3SetContactFilterBodyB", types.void, p, i32)
_contacts = _external("b3GetContactPointInformation", types.void, p, p)
_request_state = _external("b3RequestActualStateCommandInit", p, p, i32)
_state = _external("b3GetStatusActualState2", i32, *[p] * 13)
_copy = _external("memcpy", p, p, p, p)
COMPILED = (
    "b3JointControlSetDesiredForceTorque",
    "b3InitStepSimulationCommand",
    "b3InitRequestContactPointInformation",
    "b3SetContactFilterBodyA",
    "b3SetContactFilterBodyB",
    "b3GetContactPointInformation",
    "b3RequestActualStateCommandInit",
    "b3GetStatusActualState2",
)
"""Functions that only compiled code calls."""
TORQUE_CONTROL = int(pybullet.TORQUE_CONTROL)
FIRST_JOINT_Q, FIRST_JOINT_U = 7, 6
"""Where the joints begin among the positions, after place and orientation of the torso, and among the velocities."""

compiled = partial(compile_cached, error_model="numpy")


@compiled
def _simulate(client: int, ant: int, action: NDArray[Any]) -> None:
    """One step of the physics with torques at the joints."""
    command = _control(client, ant, TORQUE_CONTROL)
    for joint in range(JOINTS):
        wanted = np.float64(action[joint])
        torque = 1.0 if wanted > 1.0 else -1.0 if wanted < -1.0 else wanted
        _set_torque(command, FIRST_JOINT_U + joint, TORQUE * torque)
    _submit(client, command)
    _submit(client, _step(client))


@compiled
def _look(
    client: int, ant: int, floor: int, feet: NDArray[np.int32], links: NDArray[np.float64], sight: NDArray[np.float64]
) -> None:
    """Writes what is to be seen into `sight`. `links` is room for seven numbers of each link."""
    command = _request_contacts(client)
    _contacts_of(command, ant)
    _contacts_with(command, floor)
    _submit(client, command)
    pointers, link = np.zeros(13, np.int64), np.zeros(1, np.int32)
    at = pointers.ctypes.data
    _contacts(client, at)
    sight[FEET] = 0.0
    for contact in range(pointers[0] & 0x7FFFFFFF):
        _copy(link.ctypes.data, pointers[1] + CONTACT_BYTES * contact + LINK_OF_CONTACT, 4)
        for foot in range(len(feet)):
            if feet[foot] == link[0]:
                sight[FEET.start + foot] = 1.0

    status = _submit(client, _request_state(client, ant))
    a = at
    _state(status, a, a + 8, a + 16, a + 24, a + 32, a + 40, a + 48, a + 56, a + 64, a + 72, a + 80, a + 88)
    positions, speeds = np.empty(FIRST_JOINT_Q + JOINTS), np.empty(FIRST_JOINT_U + JOINTS)
    _copy(positions.ctypes.data, pointers[5], 8 * len(positions))
    _copy(speeds.ctypes.data, pointers[6], 8 * len(speeds))
    _copy(links.ctypes.data, pointers[10], 8 * links.size)
    # Number by number: Numba takes seconds to compile an assignment between slices.
    for axis in range(3):
        sight[TORSO.start + axis], sight[VELOCITY.start + axis] = positions[axis], speeds[axis]
    for k in range(4):
        sight[QUATERNION.start + k] = positions[3 + k]
    for joint in range(JOINTS):
        sight[ANGLES.start + 2 * joint] = positions[FIRST_JOINT_Q + joint]
        sight[ANGLES.start + 2 * joint + 1] = speeds[FIRST_JOINT_U + joint]
    # The original's order of parts, in which it sums: the torso comes second.
    for axis in range(2):
        sight[PARTS * axis], sight[PARTS * axis + 1] = links[0, axis], positions[axis]
        for part in range(2, PARTS):
            sight[PARTS * axis + part] = links[part - 1, axis]


@compiled
def _advance(
    client: int,
    ant: int,
    floor: int,
    action: NDArray[Any],
    feet: NDArray[np.int32],
    links: NDArray[np.float64],
    sight: NDArray[np.float64],
) -> None:
    """A step and a look."""
    _simulate(client, ant, action)
    _look(client, ant, floor, feet, links, sight)


@functools.cache
def _library() -> Any:
    """PyBullet's library with the functions of `SIGNATURES`; compiled code finds its own there too."""
    library = ctypes.CDLL(pybullet.__file__)
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    binding.load_library_permanently(pybullet.__file__)
    return library


class BulletWorld(World):
    """The physics through PyBullet's C interface."""

    def __init__(self) -> None:
        b, like = _library(), _numbering()
        client = self._client = b.b3ConnectPhysicsDirect()
        self.close = weakref.finalize(self, b.b3DisconnectSharedMemory, client)
        command = b.b3InitPhysicsParamCommand(client)
        b.b3PhysicsParamSetTimeStep(command, STEP_SECONDS)
        b.b3PhysicsParamSetNumSolverIterations(command, SOLVER_ITERATIONS)
        b.b3PhysicsParamSetNumSubSteps(command, FRAME_SKIP)
        b.b3PhysicsParameterSetDeterministicOverlappingPairs(command, 1)
        b.b3PhysicsParamSetDefaultContactERP(command, CONTACT_ERP)
        b.b3PhysicsParamSetGravity(command, 0.0, 0.0, GRAVITY)
        self._do(command)
        self._floor = self._body(b.b3LoadSdfCommandInit(client, FLOOR_FILE.encode()))
        command = b.b3InitChangeDynamicsInfo(client)
        b.b3ChangeDynamicsInfoSetLateralFriction(command, self._floor, -1, FLOOR_FRICTION)
        b.b3ChangeDynamicsInfoSetRestitution(command, self._floor, -1, FLOOR_RESTITUTION)
        self._do(command)
        command = b.b3LoadMJCFCommandInit(client, ANT_FILE.encode())
        b.b3LoadMJCFCommandSetFlags(command, FLAGS)
        self._ant = self._body(command)
        self._joints, self._geoms = like.joints, like.geoms
        for info in like.infos:
            position, velocity = info[3], info[4]
            command = b.b3JointControlCommandInit2(client, self._ant, pybullet.POSITION_CONTROL)
            b.b3JointControlSetDesiredPosition(command, position, 0.0)
            b.b3JointControlSetKp(command, velocity, MOTOR_GAIN)
            b.b3JointControlSetDesiredVelocity(command, velocity, 0.0)
            b.b3JointControlSetKd(command, velocity, MOTOR_GAIN)
            b.b3JointControlSetMaximumForce(command, velocity, 0.0)
            self._do(command)
        self.limits = like.limits
        self.sight = np.zeros(FEET.stop)
        self._feet, self._links = np.array(like.feet, np.int32), np.zeros((len(like.links), 7))
        self._start = b.b3GetStatusGetStateId(self._do(b.b3SaveStateCommandInit(client)))
        self._drawing: PythonWorld | None = None

    def _do(self, command: int) -> int:
        status: int = _library().b3SubmitClientCommandAndWaitStatus(self._client, command)
        return status

    def _body(self, command: int) -> int:
        found = (ctypes.c_int * 1)()
        _library().b3GetStatusBodyIndices(self._do(command), found, 1)
        return found[0]

    def set_friction(self, value: float) -> None:
        if value != self.friction:
            for link in self._geoms:
                command = _library().b3InitChangeDynamicsInfo(self._client)
                _library().b3ChangeDynamicsInfoSetLateralFriction(command, self._ant, link, value)
                self._do(command)
            self.friction = value

    def restart(self, positions: list[float]) -> None:
        b = _library()
        command = b.b3LoadStateCommandInit(self._client)
        b.b3LoadStateSetStateId(command, self._start)
        self._do(command)
        for joint, position in zip(self._joints, positions, strict=True):
            command = b.b3CreatePoseCommandInit(self._client, self._ant)
            b.b3CreatePoseCommandSetJointPosition(self._client, command, joint, position)
            b.b3CreatePoseCommandSetJointVelocity(self._client, command, joint, 0.0)
            self._do(command)
        _look(self._client, self._ant, self._floor, self._feet, self._links, self.sight)

    def simulate(self, action: NDArray[Any]) -> None:
        _simulate(self._client, self._ant, action)

    def advance(self, action: NDArray[Any]) -> None:
        _advance(self._client, self._ant, self._floor, action, self._feet, self._links, self.sight)

    def _save(self, path: str) -> None:
        self._do(_library().b3SaveBulletCommandInit(self._client, path.encode()))

    def _load(self, path: str) -> None:
        command = _library().b3LoadStateCommandInit(self._client)
        _library().b3LoadStateSetFileName(command, path.encode())
        self._do(command)

    def picture(self) -> NDArray[np.uint8]:
        drawing = self._drawing = self._drawing or PythonWorld()
        drawing.load(self.save())
        return drawing.picture()


@functools.cache
def _numbering() -> PythonWorld:
    """A world that knows the numbers of joints, links and feet, which are the same in all; its engine is gone."""
    world = PythonWorld()
    world.close()
    return world


@functools.cache
def serves() -> bool:
    """Whether PyBullet's C interface is the one that this module knows, and gives the numbers of the Python calls."""
    library = ctypes.CDLL(pybullet.__file__)
    known = version("pybullet") in KNOWN_VERSIONS and all(hasattr(library, name) for name in (*SIGNATURES, *COMPILED))
    if known:
        worlds: tuple[World, World] = PythonWorld(), BulletWorld()
        for world in worlds:
            world.set_friction(0.5)
            world.restart([0.01 * joint for joint in range(JOINTS)])
            for step in range(30):  # until feet are on the ground
                world.advance(np.linspace(-1.5, 1.0, JOINTS) * (-1) ** step)
        known = bool((worlds[0].sight == worlds[1].sight).all()) and bool(worlds[0].sight[FEET].any())
        for world in worlds:
            world.close()
    if not known:
        LOGGER.info("SlipperyAnt: PyBullet's C interface is not one that is known; its Python calls are used, which are slower")
    return known


def make_world() -> World:
    """The physics, in the quickest way that there is here."""
    return BulletWorld() if serves() else PythonWorld()
