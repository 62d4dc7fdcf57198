"""What the benchmarks that compare engines have in common."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

METHODS: dict[str, dict[str, Any]] = {
    "bp": {"name": "bp"},
    "cbp": {"name": "cbp", "replacement_rate": 1e-4},
    "l2": {"name": "l2", "weight_decay": 1e-4},
    "online_norm": {"name": "online_norm"},
}
"""The methods that are compared, with their settings."""


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This process on a single core, torch with a single thread."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {max(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
