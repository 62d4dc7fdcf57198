"""The world of Slippery Ant: environment, friction, and env runners that know the global time-step."""

import os


def _import_pybullet() -> None:
    """Imports PyBullet without its greeting on stderr, where commands promise one line."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        import pybullet  # noqa: F401
    finally:
        os.dup2(kept, 2)
        os.close(kept)


_import_pybullet()
