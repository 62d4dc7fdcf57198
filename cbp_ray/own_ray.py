"""Starting a Ray of our own: it listens on loopback alone, and nobody else can read its token."""

import contextlib
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from cbp_ray.errors import ClusterError


def start_ray(**settings: Any) -> None:
    """Starts a cluster of this machine alone, without a dashboard, and connects to it.

    Args:
      settings: further ones of `ray.init`.

    Raises:
      ClusterError: if Ray does not start.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
        make_token_private()
    import ray

    # By itself, Ray on Linux listens on all of the machine's addresses, so that other nodes may join. This is its switch for
    # systems on which none can; all of its processes are then told the address of loopback.
    before = ray._private.ray_constants.ENABLE_RAY_CLUSTER
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        ray.init(address="local", include_dashboard=False, **settings)
    except Exception as error:  # Ray has no narrower class for a node that is not up in time
        with contextlib.suppress(Exception):
            ray.shutdown()
        why = " ".join(str(error).split())
        fix = "try again when less else runs on this machine" if "timed out" in why else "mend that, and try again"
        raise ClusterError(f"Ray did not start ({why}); {fix}") from error
    finally:
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = before


def make_token_private() -> None:
    """Sees to it that the token in the user's home is there, and that only its owner can read it.

    Ray itself writes it with whatever permissions new files have, which often lets everybody on the machine read it. A token
    that comes from elsewhere (`RAY_AUTH_TOKEN`, `RAY_AUTH_TOKEN_PATH`) is the business of whoever put it there.
    """
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = Path.home() / ".ray" / "auth_token"
    # What can't be done here, in a home that is not ours to write, Ray reports itself.
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not path.exists():
            # Whole or not at all, since other processes may start at the same moment: the first one's token stays.
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".auth_token-")
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(secrets.token_hex(32))
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                os.unlink(temporary)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
