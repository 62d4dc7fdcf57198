"""A worker that runs one block after the other keeps nothing of them: no open file, and no memory."""

import gc
import os
import tracemalloc
from pathlib import Path

import pytest

from cbp_ray.experiments import OnlineConfig
from cbp_ray.results import Block, Store
from cbp_ray.sweeps.trainable import PACKED, RunBlock, pack

FIRST, BLOCKS = 5, 25
MOST_BYTES = 500_000
"""What 20 blocks may leave behind; one that is kept takes three times as much."""


def setting(store: Store, number: int, engine: str) -> dict[str, str]:
    given = {"optimizer": {"name": "sgd", "step_size": 0.01}, "examples": 30, "bin_size": 10}
    config = OnlineConfig.make(given | {"algorithm": {"name": "cbp", "replacement_rate": 1e-5 * (1 + number)}})
    return {PACKED: pack(store, Block(config, engine, (0, 1)), "cbp")}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted where Linux lists them")
@pytest.mark.parametrize("engine", ["kernel", "torch"])
def test_blocks_leave_no_open_file_and_no_memory(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBP_RAY_CHECKPOINT_SECONDS", "0")
    store, measured = Store(tmp_path, "flat"), []
    worker = RunBlock(setting(store, 0, engine))
    try:
        for number in range(1, BLOCKS + 1):
            while not worker.step()["done"]:
                pass
            worker.reset_config(setting(store, number, engine))
            if number == 1:  # everything is imported and compiled by now
                tracemalloc.start()
            if number in (FIRST, BLOCKS):
                gc.collect()
                measured.append((len(os.listdir("/proc/self/fd")), tracemalloc.get_traced_memory()[0]))
    finally:
        tracemalloc.stop()
    (files, memory), (files_then, memory_then) = measured
    assert len(store.names()) == BLOCKS
    assert files_then == files and memory_then - memory < MOST_BYTES
