"""One thread per test process: tests run side by side, and threads of several processes would fight for the cores."""

import os
import sys

import pytest

# Read when torch is imported, which is later than this; the processes that tests start inherit it.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    # The test modules are imported by now; those that need no torch are not made to wait for it.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
