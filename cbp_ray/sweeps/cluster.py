"""Connecting to Ray, with token authentication on, and what the cluster has to offer.

Ray reads `RAY_AUTH_MODE` when it is imported, so nothing here imports it before the variable is set.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cbp_ray.errors import ClusterError, InputError
from cbp_ray.own_ray import make_token_private, start_ray
from cbp_ray.sweeps.sweep import Resources

OBJECT_STORE_BYTES = 100 * 2**20
"""Size of the object store of an embedded cluster. Results go to storage; Ray carries a few hundred bytes per trial."""

ANSWER_SECONDS = 5.0
"""How long to wait for an answer from a cluster's address."""

WATCH_SECONDS = 5.0
"""Seconds between two questions to a cluster's GCS."""
MISSES = 2
"""After how many questions in a row without an answer it is said."""

OF_SWEEPS = {
    # Our own progress says what happens; Tune's loggers repeat it for every trial.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Sweeps resume from their results. Tune's own snapshot is never read, and takes long for thousands of trials.
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",
}
"""What Tune leaves out where sweeps have their own: its loggers and its snapshots."""

QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


EMBEDDED = {
    # An embedded cluster is not started again where it was: a minute's wait for its GCS would be in vain.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}


def has_token() -> bool:
    """Whether this user has a token of Ray."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return True
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(path).is_file() if path else (Path.home() / ".ray" / "auth_token").is_file()


def use_token() -> None:
    """Turns token authentication on for this process and those it starts, unless the environment says otherwise."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
        make_token_private()
    if "RAY_AUTH_MODE" in os.environ:
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    if "ray" in sys.modules:
        from ray._raylet import Config  # type: ignore[attr-defined]

        Config.initialize("")


def resolve_address(address: str | None) -> str | None:
    """The cluster to use: as given, else that of the Ray job this process runs in, else None for an embedded one.

    Raises:
      InputError: for an address that Tune cannot be driven through.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address and address.startswith(("http://", "https://", "ray://")):
        raise InputError(
            f"address: must be HOST:PORT of a cluster that this machine is part of, or auto, got {address!r}; "
            "use `cbp-ray submit --address http://HOST:8265` from elsewhere"
        )
    return None if address == "local" else address


@contextlib.contextmanager
def connected(address: str | None, sweep: bool = True) -> Iterator[None]:
    """A connection to Ray for the length of a sweep; one that is there already is used and left alone.

    Args:
      address: the cluster; None for an embedded one.
      sweep: whether results and progress are ours; otherwise Tune logs and takes snapshots as it always does.

    Raises:
      InputError: if the cluster cannot be reached, has another token, or is not the one that is connected.
    """
    for name, value in (QUIET | (OF_SWEEPS if sweep else {}) | (EMBEDDED if address is None else {})).items():
        os.environ.setdefault(name, value)
    for name, value in ({} if sweep else OF_SWEEPS).items():
        if os.environ.get(name) == value:
            del os.environ[name]  # of a sweep before, in this process
    if address is None or has_token():
        use_token()
    import ray

    for name in ("ray.tune", "ray.train", "ray.air", "ray._private", "ray.worker"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Ray prints news of dead workers on stdout, into the middle of our JSON, and has no public switch for it.
    ray._private.worker._worker_logs_enabled = False
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", here):
            raise InputError(f"address: this process is connected to {here}, got {address!r}; call ray.shutdown() first")
        yield
        return
    _connect(address)
    try:
        with terminated_as_interrupted():
            yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Lets SIGTERM, which Slurm, Kubernetes and Ray's job server send, do what Ctrl-C does.

    It must be entered again when Ray is connected, which then listens to the signal in its own way.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt  # of a process in the background of a script, which is deaf to the signal
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        # What was not set from Python can't be set again.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _connect(address: str | None) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address is None:
        start_ray(object_store_memory=OBJECT_STORE_BYTES, **quiet)
        return
    _check_answers(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise InputError(_not_running(address, str(error))) from None


def _check_answers(address: str) -> None:
    """Asks a cluster for its id. Ray itself would try for minutes, and not tell a wrong token from a wrong address."""
    import grpc  # type: ignore[import-untyped]
    from ray._private.grpc_utils import init_grpc_channel
    from ray._private.services import canonicalize_bootstrap_address
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
    from ray.exceptions import AuthenticationError

    try:
        # `auto` is what the latest `ray start` has left behind, which may be gone.
        found = canonicalize_bootstrap_address(address)
        if found is None:
            return
        with init_grpc_channel(found, [("grpc.enable_http_proxy", 0)]) as channel:
            ask = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel).GetClusterId  # type: ignore[no-untyped-call]
            ask(gcs_service_pb2.GetClusterIdRequest(), timeout=ANSWER_SECONDS)  # type: ignore[attr-defined]
    except grpc.RpcError as error:
        if error.code() not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            raise InputError(_not_running(address, error.details())) from None
        raise InputError(f"address: {wants_token(address)}") from None
    except AuthenticationError:
        raise InputError(f"address: {wants_token(address)}") from None
    except (OSError, ValueError) as error:
        raise InputError(_not_running(address, str(error))) from None


def _not_running(address: str, reason: str) -> str:
    reason = " ".join(reason.split())[:200]
    return f"address: must be HOST:PORT of a running Ray cluster, got {address!r} ({reason}); see `ray status`"


def wants_token(address: str) -> str:
    """The message to a user whose token is missing or wrong."""
    fix = "copy ~/.ray/auth_token from the head node, or set RAY_AUTH_TOKEN"
    return f"{address} wants its token, {'got another' if has_token() else 'got none'}; {fix}"


class ClusterLost(ClusterError):
    """Ray died under a sweep. What was finished is stored."""


def check_alive() -> None:
    """Raises `ClusterLost` unless the node of this process still lives: without it, Tune would wait forever."""
    import ray

    node = ray._private.worker._global_node
    dead: list[str] = [kind for kind, _ in node.dead_processes()] if node is not None else []
    if "raylet" in dead or "gcs_server" in dead:
        raise ClusterLost(f"Ray's {' and '.join(dead)} died; run the same command again to go on")
    own = ray.get_runtime_context().get_node_id()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    if not any(each["NodeID"] == own and each["Alive"] for each in nodes):
        raise ClusterLost("the Ray node of this process died; run the same command again to go on")


@contextlib.contextmanager
def watched(say: Callable[[str], None]) -> Iterator[None]:
    """Says so when the cluster's GCS does not answer, and when it answers again: Ray waits a minute for it, in silence."""
    import ray

    address, over = ray.get_runtime_context().gcs_address, threading.Event()

    def watch() -> None:
        missed = 0
        while not over.wait(WATCH_SECONDS):
            before = missed
            try:
                _check_answers(address)
                missed = 0
            except Exception:  # whatever it is, there was no answer
                missed += 1
            # Once may be chance: a busy head answers late.
            if missed == MISSES:
                _say(f"Ray's GCS at {address} does not answer; Ray gives it a minute to come back, and the sweep ends then")
            elif before >= MISSES and not missed:
                _say(f"Ray's GCS at {address} answers again")

    def _say(message: str) -> None:
        # Nobody may be there to hear it any more.
        with contextlib.suppress(OSError, ValueError):
            if not over.is_set():
                say(message)

    thread = threading.Thread(target=watch, name="watch over the GCS", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        # A question that is under way may take longer, and harms nobody.
        thread.join(1.0)


def slots(resources: Resources, helpers: int = 0) -> int:
    """How many trials run at once on the nodes that are there now, each with `helpers` cores more on any node."""
    wanted = {"CPU": resources.cpu, "GPU": resources.gpu, "memory": resources.memory_mb * 2**20}
    wanted = {name: amount for name, amount in wanted.items() if amount}
    return most_trials(offered(), [wanted, *[{"CPU": 1.0}] * helpers])


def offered() -> list[dict[str, float]]:
    """The resources of each node that is there now."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [dict(node["Resources"]) for node in nodes if node["Alive"]]


def most_trials(free: list[dict[str, float]], bundles: list[dict[str, float]]) -> int:
    """How many times all of some bundles of resources fit on nodes with these; a bundle is on one node."""
    if len(bundles) == 1:
        (wanted,) = bundles
        return sum(int(min(node.get(name, 0.0) / amount for name, amount in wanted.items()) + 1e-9) for node in free)
    count = 0
    while True:
        for bundle in bundles:
            fits = (node for node in free if all(node.get(name, 0.0) + 1e-9 >= amount for name, amount in bundle.items()))
            node = next(fits, None)
            if node is None:
                return count
            for name, amount in bundle.items():
                node[name] -= amount
        count += 1
