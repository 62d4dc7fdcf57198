"""How the tests run side by side: one thread per process, and what compiles the same kernels in one process."""

import os
import re
import sys

import pytest

# Read when torch is imported, which is later than this; the processes that tests start inherit it.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
# Ray's workers are nice, and beside processes that compile they would get no time for minutes.
os.environ.setdefault("RAY_worker_niceness", "0")

GROUPS = {
    "ppo": r"tests/rllib/test_(compiled_learner|rllib_learner|fast_loop|film)|numbers_stay\[ant",
    "mlp": r"tests/kernels/test_mlp|numbers_stay\[mlp|test_pauses_change_nothing",
    "lane": r"tests/kernels/test_lane|numbers_stay\[lane|experiments/test_run_online",
    "names": r"test_private_names",
}
"""Tests that need the same kernels, or the same of whatever takes long to make: in one process, since in two, each would."""
ORDER = ("ppo", "mlp", "lane", "ray")
"""Groups, in the order in which processes that are free take them: those that compile first, since beside two of them Ray is
too slow to start; tests without a group, which any process can take, come last."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts tests into their groups, before xdist reads them, and in order."""

    def place(item: pytest.Item) -> int:
        marker = item.get_closest_marker("xdist_group")
        name = marker.args[0] if marker else ""
        return ORDER.index(name) if name in ORDER else len(ORDER)

    for item in items:
        for name, pattern in GROUPS.items():
            if item.get_closest_marker("xdist_group") is None and re.search(pattern, item.nodeid):
                item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=place)


@pytest.fixture(autouse=True)
def _no_foreign_ray(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    # RLlib connects to Ray by itself, and would take the cluster of a test in another process, which then ends.
    if "rllib" in request.path.parts:
        monkeypatch.setenv("RAY_ADDRESS", "local")


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    # The test modules are imported by now; those that need no torch are not made to wait for it.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
