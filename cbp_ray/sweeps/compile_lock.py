"""Compiling once per machine: the first worker compiles what a configuration needs, the others find it in Numba's cache."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from filelock import FileLock

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines import row_of
from cbp_ray.experiments.online import iterate_online

_compiled: set[str] = set()


def compile_once(config: OnlineConfig, engine: str = "kernel") -> None:
    """Compiles what a run of `config` needs, one process of this machine at a time; nothing if the engine compiles nothing."""
    smallest = row_of(config, engine).smallest
    if smallest is None or is_ready(config, engine):
        return
    directory = Path(tempfile.gettempdir()) / f"cbp-ray-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    with FileLock(directory / "compile.lock"):
        for _ in iterate_online(smallest(config), (0,), engine):  # type: ignore[arg-type]
            pass
    _compiled.add(_shape(config))


def is_ready(config: OnlineConfig, engine: str = "kernel") -> bool:
    """Whether this process has what a run of `config` needs: nothing is to be compiled, or it was."""
    return row_of(config, engine).smallest is None or _shape(config) in _compiled


def _shape(config: OnlineConfig) -> str:
    """Configurations of the same shape are compiled once."""
    return json.dumps(_kinds(config.model_dump(mode="json")))


def _kinds(settings: Any) -> Any:
    """Settings with every number replaced by its sign: what kernels are compiled for depends on no more."""
    if isinstance(settings, dict):
        return {name: _kinds(value) for name, value in settings.items()}
    if isinstance(settings, list):
        return [_kinds(value) for value in settings]
    return settings if isinstance(settings, str | bool) or settings is None else settings > 0
