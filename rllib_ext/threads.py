"""Threads: as many as a process has cores for, and one where several processes share them.

A run of a sweep has the CPUs that Ray gave its worker, one as a rule. Env runners in actors take one thread each, whatever a
person exported. The learner of a single run takes all cores that its process may use.
"""

import os
from typing import Any

import ray
import torch
from threadpoolctl import threadpool_limits

VARIABLE = "OMP_NUM_THREADS"
"""Environment variable with the number of threads that a person, or Ray, wants a process to have."""


def learner_threads() -> int:
    """Number of threads that a learner in this process should use: those it may have, at most one per core.

    In a worker of Ray that is the number of CPUs that the worker was given; elsewhere, the number of cores that the process may
    run on. `OMP_NUM_THREADS` may ask for fewer.
    """
    threads = len(os.sched_getaffinity(0))
    if ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        resources: Any = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]
        threads = min(threads, int(resources.get("CPU", 1)))
    wanted = os.environ.get(VARIABLE, "")
    if wanted.isdecimal():
        threads = min(threads, int(wanted))
    return max(1, threads)


def one_thread_from_now_on() -> None:
    """Has this process, which is one of several on its machine, use a single thread for arithmetic."""
    torch.set_num_threads(1)
    threadpool_limits(limits=1)
