"""Checks of numbers that a person gave."""

import operator
from typing import Any

from cbp_ray.errors import InputError

SEEDS = 2**64
"""Seeds are one half of a Philox key: below this."""


def whole_number(name: str, value: Any, least: int = 0, below: int | None = None) -> int:
    """`value` as a Python integer in [least, below).

    Raises:
      InputError: if it is out of range or no integer; 1.0, True and "1" are none.
    """
    limits = f"at least {least}" if below is None else f"in [{least}, {below if below != SEEDS else '2**64'})"
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (below is not None and number >= below):
        raise InputError(f"{name}: must be a whole number {limits}, got {value!r}; use another")
    return number
