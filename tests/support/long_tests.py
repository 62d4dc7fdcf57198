"""Parametrised tests of which `make test` runs the first few, and `make test-all` all."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """The cases, of which all but the first `count` are marked as long."""
    return [case if number < count else _long(case) for number, case in enumerate(cases)]


def _long(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
