"""How a sweep is cut into trials, and that a trial may be cut short anywhere."""

import os
from pathlib import Path

import numpy as np
import pytest

from cbp_ray.experiments import OnlineConfig, run_online
from cbp_ray.experiments.engines import ENGINES
from cbp_ray.kernels import WIDTH
from cbp_ray.results import Block, BlockName, Store, config_key
from cbp_ray.sweeps import Configuration, Sweep, block_run, cost, unfinished
from cbp_ray.sweeps.block_run import BlockRun
from cbp_ray.sweeps.plan import divide, find_missing, make_plan
from cbp_ray.sweeps.trainable import pack, unpack


def make_config(**settings: object) -> OnlineConfig:
    return OnlineConfig.make(
        {
            "algorithm": {"name": "cbp", "replacement_rate": 1e-3},
            "optimizer": {"name": "sgd", "step_size": 0.01},
            "problem": {"flip_period": 300},
            "examples": 2500,
            "bin_size": 500,
            **settings,
        }
    )


def make_sweep(seeds: range, *configs: OnlineConfig) -> Sweep:
    return Sweep("sweep", tuple(seeds), "kernel", tuple(Configuration("group", config) for config in configs))


def finish(work: BlockRun) -> None:
    while not work.advance()["done"]:
        pass


def test_every_engine_has_a_cost() -> None:
    assert set(cost.COSTS) == set(ENGINES)


@pytest.mark.parametrize("examples", [10_000, 1_000_000, 100_000_000, 10_000_000_000])
@pytest.mark.parametrize("slots", [1, 2, 64])
def test_blocks_cover_every_run_once_and_last_a_reasonable_time(examples: int, slots: int, tmp_path: Path) -> None:
    config = make_config(examples=examples, bin_size=max(500, examples // 1_000_000))
    plan = make_plan(find_missing(make_sweep(range(500), config), Store(tmp_path, "sweep")), slots)
    seeds = [seed for trial in plan.trials for seed in trial.block.seeds]
    assert sorted(seeds) == list(range(500))
    for trial in plan.trials:
        assert trial.seconds <= 60 or len(trial.block.seeds) <= WIDTH
    if plan.seconds > 60 * slots:
        assert len(plan.trials) >= min(slots, 500 // WIDTH)


def test_only_what_is_missing_is_planned_whatever_the_blocks_were(tmp_path: Path) -> None:
    store, config = Store(tmp_path, "sweep"), make_config()
    for seeds in [(0, 1, 2), (7,), (40, 41)]:
        block = Block(config, "kernel", seeds)
        store.write(block, run_online(config, seeds), {})
    plan = make_plan(find_missing(make_sweep(range(50), config), store), 2)
    planned = {seed for trial in plan.trials for seed in trial.block.seeds}
    assert planned == set(range(50)) - {0, 1, 2, 7, 40, 41}
    assert plan.stored_runs == 6


def test_a_block_with_a_checkpoint_is_taken_up_as_it_was() -> None:
    begun = BlockName("0123456789abcdef0123", (3, 4, 5))
    assert divide(range(8), [begun], 4) == [(3, 4, 5), (0, 1, 2, 6), (7,)]
    assert divide([0, 3, 4], [begun], 4) == [(0, 3, 4)]


def test_scattered_seeds_make_short_names() -> None:
    blocks = divide(range(0, 1000, 3), [], 128)
    assert sorted(seed for block in blocks for seed in block) == list(range(0, 1000, 3))
    assert max(len(str(BlockName("0123456789abcdef0123", block))) for block in blocks) < 200


def test_a_block_survives_being_packed(tmp_path: Path) -> None:
    block = Block(make_config(), "torch", (0, 1, 5))
    store, *rest = unpack(pack(Store(tmp_path, "sweep"), block, "g", metric="error"))
    assert (store.folder.location, *rest) == (str(tmp_path / "sweep"), block, "g", False, {"metric": "error"})


@pytest.mark.parametrize("engine", ["kernel", "torch"])
def test_a_trial_that_was_cut_short_ends_with_the_same_bits(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config() if engine == "kernel" else make_config(examples=500, bin_size=100)
    block, store = Block(config, engine, (0, 1, 5)), Store(tmp_path, "sweep")
    monkeypatch.setattr(block_run, "STEP_SECONDS", 0.0)
    monkeypatch.setenv("CBP_RAY_CHECKPOINT_SECONDS", "0")
    work = BlockRun(store, block)
    work.advance()
    work.advance()
    assert [str(name) for name in unfinished.unfinished(store)] == [block.trial_id]
    again = BlockRun(store, block)
    assert again.resumed_examples == 2 * config.bin_size
    finish(again)
    assert unfinished.unfinished(store) == []
    whole, stored = run_online(config, block.seeds, engine), store.read_curves(config, block.seeds, engine)  # type: ignore[arg-type]
    for metric in whole.metrics:
        np.testing.assert_array_equal(stored[metric], whole[metric])


def test_permuted_mnist_goes_on_from_its_last_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = OnlineConfig.make(
        {
            "problem": {"name": "permuted_mnist", "task_length": 200},
            "network": {"hidden": [10]},
            "algorithm": {"name": "cbp", "replacement_rate": 1e-2},
            "optimizer": {"name": "sgd", "step_size": 0.01},
            "examples": 1_000,
            "bin_size": 100,
        }
    )
    block, store = Block(config, "kernel", (3,)), Store(tmp_path, "sweep")
    monkeypatch.setattr(block_run, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(block_run, "TASK_CHECKPOINT_SECONDS", 0.0)
    work = BlockRun(store, block)
    for _ in range(5):
        work.advance()
    again = BlockRun(store, block)  # nobody told the first that it ends
    assert again.resumed_examples == 400
    finish(again)
    whole, stored = run_online(config, (3,)), store.read_curves(config, (3,))
    for metric in whole.metrics:
        np.testing.assert_array_equal(stored[metric], whole[metric])


@pytest.mark.parametrize("damage", ["truncated", "garbage", "other config"])
def test_a_checkpoint_that_cannot_be_used_is_not(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block, store = Block(make_config(), "kernel", (0, 1)), Store(tmp_path, "sweep")
    monkeypatch.setattr(block_run, "STEP_SECONDS", 0.0)
    monkeypatch.setenv("CBP_RAY_CHECKPOINT_SECONDS", "0")
    BlockRun(store, block).advance()
    path = tmp_path / "sweep" / "checkpoints" / f"{block.trial_id}.npz"
    if damage == "other config":
        other = Block(make_config(examples=3000, bin_size=600), "kernel", (0, 1))
        BlockRun(store, other).advance()
        os.replace(path.with_name(f"{other.trial_id}.npz"), path)
    else:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"nonsense")
    work = BlockRun(store, block)
    assert work.resumed_examples == 0
    finish(work)
    np.testing.assert_array_equal(store.read_curves(block.config, (0, 1)).error, run_online(block.config, (0, 1)).error)


def test_a_stored_block_is_not_run_again(tmp_path: Path) -> None:
    block, store = Block(make_config(), "kernel", (0, 1)), Store(tmp_path, "sweep")
    finish(BlockRun(store, block))
    report = BlockRun(store, block).advance()
    assert report["done"] and report["new_examples"] == 0


def test_the_key_says_which_engine(tmp_path: Path) -> None:
    assert config_key(make_config(), "kernel") != config_key(make_config(), "torch")
