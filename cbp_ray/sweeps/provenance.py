"""Where numbers come from: the code, the machine and the versions of libraries."""

import contextlib
import json
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@cache
def environment() -> dict[str, Any]:
    """What is stored with every run about where and with what it was made."""
    import ray

    versions = {name: version(name) for name in ("cbp-ray", "numpy", "numba", "torch", "ray")}
    return {
        "host": platform.node(),
        "node": ray.get_runtime_context().get_node_id() if ray.is_initialized() else "",
        "cpu": cpu_model(),
        "python": platform.python_version(),
        "versions": json.dumps(versions),
        "commit": commit(),
    }


def cpu_model() -> str:
    """What kind of processor this machine has."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """The commit of the code that runs, with a plus sign if files differ from it; empty outside of a checkout."""
    if not (ROOT / ".git").exists():
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        changed = _git("status", "--porcelain", "--untracked-files=no", "cbp_ray", "rllib_ext", "tune_configs")
        return _git("rev-parse", "HEAD") + ("+" if changed else "")
    return ""


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
