"""What the property tests of bad input share: how many cases, values that nobody expects, and what must be true of an answer.

The rule for every input: it works, or it is refused in one line (exit code 2, or one `InputError`). Never a traceback, a hang,
memory without bound, or a file that is left behind.
"""

import contextlib
import copy
import io
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cbp_ray.cli import main
from cbp_ray.errors import InputError

EFFORTS = ["short", pytest.param("long", marks=pytest.mark.slow)]
"""How many cases: few and always the same, or many and each time others."""
TIMES_MORE = 40
"""The long tests try this many times the cases of the short ones."""
MOST_SECONDS = 60.0
"""No single answer may take longer, on a machine that is busy with other things."""
MORE_BYTES = 3 * 2**30
"""How much a test may add to the address space of its process."""

efforts = pytest.mark.parametrize("effort", EFFORTS)


def hold(check: Callable[..., None], effort: str, cases: int, **strategies: Any) -> None:
    """Lets Hypothesis look for arguments that make `check` fail."""
    limits = settings(
        max_examples=cases if effort == "short" else cases * TIMES_MORE,
        derandomize=effort == "short",
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    with bounded_memory():
        limits(given(**strategies)(check))()


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """Makes what asks for more memory than any input deserves fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Answer(NamedTuple):
    """What a command has said."""

    code: int
    out: str
    err: str


def answer(arguments: list[str], program: Callable[[list[str]], int] = main, name: str = "cbp-ray") -> Answer:
    """What a command says in this process. Bad input must be one line, and at once."""
    out, err, begun = io.StringIO(), io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = program(arguments)
        except SystemExit as end:  # of argparse
            code = int(end.code or 0)
    said = Answer(code, out.getvalue(), err.getvalue())
    assert time.monotonic() - begun < MOST_SECONDS, arguments
    assert code in (0, 1, 2), said
    if code == 2:
        assert said.err.startswith(name) and said.err.count("\n") == 1 and said.err.endswith("\n"), said.err
        assert len(said.err) < 4000, f"{len(said.err)} characters: {said.err[:300]}"
    return said


def works_or_refuses(make: Callable[[], Any]) -> Any:
    """What `make` returns; None if it refuses with an `InputError` of one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return make()
        except InputError as error:
            refusal = str(error)
    assert refusal and "\n" not in refusal, refusal
    return None


texts = st.one_of(
    st.sampled_from(
        ["", " ", ".", "..", "../x", "/etc/passwd", "a/b", "~", "-1", "1e-4", "1e400", "nan", "inf", "0x10", "½", "٣", "null"]
    ),
    st.sampled_from(
        ["\0", "a\nb", "x" * 5000, "'", '"', "{", "[", "%s", "{0}", "=", ":", "#", "- ", "\ud800", "\u202e", "true"]
    ),
    st.text(max_size=12),
)
"""Text that is seldom meant."""
numbers = st.one_of(
    st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**30, -(10**30), 10**400]),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")]),
    st.integers(-10, 10),
    st.floats(-2, 2),
)
"""Numbers at the ends of what there is."""
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3), max_leaves=6
)
"""Anything that YAML or JSON can hold, and more."""


@st.composite
def changed(draw: Any, good: Any, odd: Any = values) -> Any:
    """Nested data that is right but for one to three changes: a value replaced, a key dropped, added or renamed."""
    data = copy.deepcopy(draw(good) if isinstance(good, st.SearchStrategy) else good)
    for _ in range(draw(st.integers(1, 3))):
        place, key = draw(st.sampled_from(places(data)))
        change = draw(st.sampled_from(["replace", "replace", "replace", "drop", "add", "rename", "wrap"]))
        if change == "replace":
            place[key] = draw(odd)
        elif change == "wrap":
            place[key] = [place[key]] if draw(st.booleans()) else {"name": place[key]}
        elif change == "drop":
            del place[key]
        elif isinstance(place, dict):
            place[draw(scalars)] = draw(odd) if change == "add" else place.pop(key)
        if not data:
            break
    return data


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every list or mapping of nested data with each of its keys."""
    keys = list(data) if isinstance(data, dict) else list(range(len(data))) if isinstance(data, list) else []
    found = [(data, key) for key in keys]
    return found + [place for key in keys for place in places(data[key])]


@st.composite
def damaged(draw: Any, good: bytes) -> bytes:
    """The content of a file that was cut, overwritten in part, or mixed up."""
    content, kind = bytearray(good), draw(st.sampled_from(["cut", "flip", "overwrite", "insert", "random", "twice"]))
    at = draw(st.integers(0, max(0, len(content) - 1)))
    if kind == "cut":
        del content[at:]
    elif kind == "flip":
        for _ in range(draw(st.integers(1, 4))):
            content[draw(st.integers(0, len(content) - 1))] ^= 1 << draw(st.integers(0, 7))
    elif kind == "overwrite":
        junk = draw(st.binary(min_size=1, max_size=64))
        content[at : at + len(junk)] = junk
    elif kind == "insert":
        content[at:at] = draw(st.binary(min_size=1, max_size=64))
    elif kind == "random":
        content = bytearray(draw(st.binary(max_size=200)))
    else:
        content = content * 2
    return bytes(content)
