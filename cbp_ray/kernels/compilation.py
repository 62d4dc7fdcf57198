"""Compiling with a cache on disk, and what else has to be part of the cache's key."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


def compile_cached(function: Callable[..., Any]) -> Callable[..., Any]:
    """`njit(cache=True)`; without a cache where no directory can be written, neither beside the source nor of the user."""
    try:
        return njit(cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
        return njit(function)  # type: ignore[no-any-return]


@functools.cache
def source_fingerprint() -> str:
    """Of all kernels. Numba watches only the file of a compiled function, not those of the functions that it calls;
    a function with this among its free variables is compiled anew when any of them changes."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
