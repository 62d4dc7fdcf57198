"""Threads: as many as a process has cores for, and one where several processes share them.

A run of a sweep is alone on its core, and Ray tells its worker so (`OMP_NUM_THREADS`). Env runners in actors take one thread
each, whatever a person exported. The learner of a single run takes all cores of its process. Matrix products of a handful of
rows, as those of a policy, are quickest in the thread that asks for them.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import torch
from threadpoolctl import ThreadpoolController

VARIABLE = "OMP_NUM_THREADS"
"""Environment variable with the number of threads that a person, or Ray, wants a process to have."""


def learner_threads() -> int:
    """Number of threads that a learner in this process should use: those it may have, at most one per core.

    In a worker of Ray that is the number of CPUs that the worker was given; elsewhere, the number of cores that the process may
    run on. `OMP_NUM_THREADS` may ask for fewer.
    """
    threads = len(os.sched_getaffinity(0))
    if ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        threads = min(threads, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    wanted = os.environ.get(VARIABLE, "")
    if wanted.isdecimal():
        threads = min(threads, int(wanted))
    return max(1, threads)


def one_thread_from_now_on() -> None:
    """Has this process, which is one of several on its machine, use a single thread for arithmetic."""
    torch.set_num_threads(1)
    _libraries().limit(limits=1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrix products of NumPy in the calling thread alone."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _libraries() -> ThreadpoolController:
    # Looking for the libraries takes milliseconds.
    return ThreadpoolController()
