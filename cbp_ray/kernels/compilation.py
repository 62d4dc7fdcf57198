"""Compiling with a cache on disk, and what else has to be part of the cache's key."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache

from cbp_ray.kernels import lanes

KERNELS = Path(__file__).parent
COMPILED = KERNELS.parent / "compiled"
LEAVES = [KERNELS.parent / name for name in ("activations.py", "presets.py", "randomness.py")]


UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""Options for functions that allocate nothing: Numba then counts no references, which would cost more than a small network's
step."""


INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options for functions that only compiled functions call: making them callable from Python takes a quarter of the time."""


def compile_cached(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compiles as `njit(cache=True, **options)` does, with `source_fingerprint` in the cache's key.

    Where no directory can be written, neither beside the source nor of the user, it compiles without a cache.
    """
    compiled = njit(function, **options)
    try:
        # What `cache=True` does, with another class.
        compiled._cache = _Cache(function)
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
    return compiled  # type: ignore[no-any-return]


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a part of a kernel that becomes part of its caller.

    It is cached as well: the parts are most of the work, and each new combination of choices, in whatever process, then only
    has to put them together.
    """
    return compile_cached(function, forceinline=True, **UNCOUNTED, **INNER)


def separate(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a part that runs rarely and stays a function."""
    return compile_cached(function, **UNCOUNTED, **INNER)


class _Cache(FunctionCache):  # type: ignore[misc]
    """Numba watches only the file of a compiled function, not those of the functions and constants that it uses.

    The width of a block is a constant that a test changes at run time, so that no source shows it.
    """

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), source_fingerprint(), lanes.WIDTH)


@functools.cache
def source_fingerprint() -> str:
    """A hash of everything that is compiled: all kernels, the compiled parts of the torch method, and their constants."""
    paths = (*sorted(KERNELS.glob("*.py")), *sorted(COMPILED.glob("*.py")), *LEAVES)
    digests = [hashlib.sha256(path.read_bytes()).digest() for path in paths]
    return hashlib.sha256(b"".join(digests)).hexdigest()
