"""What the benchmarks that compare engines have in common."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This process on a single core, torch with a single thread."""
    import torch

    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {max(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
