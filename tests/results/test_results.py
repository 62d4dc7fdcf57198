"""Stored results: found by their name, whole or absent, and never mixed."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from cbp_ray.errors import InputError
from cbp_ray.experiments import Curves, OnlineConfig
from cbp_ray.results import Block, BlockName, MissingResults, Store, config_key
from cbp_ray.results.intervals import mean_interval
from cbp_ray.results.keys import decode_seeds, describe_seeds, encode_seeds
from cbp_ray.results.storage import Folder
from cbp_ray.results.tensorboard import write_image


def make_config(rate: float = 1e-4, **settings: object) -> OnlineConfig:
    return OnlineConfig.make(
        {
            "algorithm": {"name": "cbp", "replacement_rate": rate},
            "optimizer": {"name": "sgd", "step_size": 0.01},
            "examples": 60,
            "bin_size": 20,
            **settings,
        }
    )


def make_curves(seeds: tuple[int, ...], offset: float = 0.0) -> Curves:
    values = np.array(seeds, dtype=float)[:, None] + np.array([0.0, 0.1, 0.2]) + offset
    return Curves(seeds, np.array([20, 40, 60]), {"error": values, "dead": values / 7})


def store_block(
    store: Store, config: OnlineConfig, seeds: tuple[int, ...], engine: str = "kernel", offset: float = 0.0
) -> Block:
    block = Block(config, engine, seeds)
    store.write(block, make_curves(seeds, offset), {"host": "here", "seconds": 1.0})
    return block


@given(st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_seeds_survive_being_a_name(seeds: set[int]) -> None:
    ordered = tuple(sorted(seeds))
    assert decode_seeds(encode_seeds(ordered)) == ordered
    name = BlockName("0123456789abcdef0123", ordered)
    assert BlockName.parse(str(name)) == name


@pytest.mark.parametrize("name", ["", "readme", "short-0_1", "0123456789abcdef0123-", "0123456789abcdef0123-x", "a-b-c"])
def test_other_names_are_not_blocks(name: str) -> None:
    assert BlockName.parse(name) is None


def test_seeds_for_a_person() -> None:
    assert describe_seeds([0, 1, 2, 5]) == "0:3, 5"
    assert describe_seeds(range(0, 20, 2), most=2) == "0, 2 and 8 more ranges"


def test_curves_come_back_to_the_last_bit_with_the_seeds_asked_for_in_their_order(tmp_path: Path) -> None:
    store, config = Store(tmp_path, "sweep"), make_config()
    store_block(store, config, (0, 1, 2))
    store_block(store, config, (3, 7))
    curves = Store(tmp_path, "sweep").read_curves(config, [7, 0, 2])
    assert curves.seeds == (7, 0, 2)
    np.testing.assert_array_equal(curves.error, make_curves((7, 0, 2)).error)
    np.testing.assert_array_equal(curves["dead"], make_curves((7, 0, 2))["dead"])
    np.testing.assert_array_equal(curves.examples, [20, 40, 60])


def test_missing_runs_are_named(tmp_path: Path) -> None:
    config = make_config()
    with pytest.raises(MissingResults, match="seeds 0:3"):
        Store(tmp_path, "sweep").read_curves(config, range(3))
    store_block(Store(tmp_path, "sweep"), config, (0, 1))
    with pytest.raises(MissingResults, match=r"cbp\(replacement_rate=0.0001, .* for seeds 5;") as error:
        Store(tmp_path, "sweep").read_curves(config, [0, 1, 5])
    assert error.value.seeds == (5,)
    assert isinstance(error.value, InputError)


@pytest.mark.parametrize(
    "other",
    [
        make_config(2e-4),
        make_config(dtype="float64"),
        make_config(examples=80),
        make_config(problem={"beta": 0.6}),
        make_config(optimizer={"name": "adam", "step_size": 0.01}),
    ],
    ids=["rate", "dtype", "examples", "problem", "optimizer"],
)
def test_another_config_is_another_key(other: OnlineConfig, tmp_path: Path) -> None:
    store_block(Store(tmp_path, "sweep"), make_config(), (0, 1))
    with pytest.raises(MissingResults):
        Store(tmp_path, "sweep").read_curves(other, [0, 1])


def test_another_engine_or_result_version_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_block(Store(tmp_path, "sweep"), make_config(), (0, 1))
    with pytest.raises(MissingResults):
        Store(tmp_path, "sweep").read_curves(make_config(), [0, 1], engine="torch")
    monkeypatch.setattr("cbp_ray.results.keys.RESULT_VERSION", 0)
    with pytest.raises(MissingResults):
        Store(tmp_path, "sweep").read_curves(make_config(), [0, 1])


def test_settings_that_mean_the_same_are_the_same_key() -> None:
    spelled_out = make_config(problem={"name": "bit_flipping", "inputs": 20}, network={"hidden": [5], "activation": "tanh"})
    assert config_key(make_config(), "kernel") == config_key(spelled_out, "kernel")


def test_a_file_under_a_wrong_name_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, "sweep")
    block = store_block(store, make_config(), (0, 1))
    wrong = Block(make_config(1e-3), "kernel", (0, 1))
    os.rename(f"{store.curves.path}/{block.trial_id}.parquet", f"{store.curves.path}/{wrong.trial_id}.parquet")
    with pytest.raises(InputError, match=wrong.trial_id):
        Store(tmp_path, "sweep").read_curves(wrong.config, [0, 1])


def test_a_stored_block_is_never_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path, "sweep")
    block = store_block(store, make_config(), (0, 1))
    assert not store.write(block, make_curves((0, 1), offset=5.0), {"host": "there", "seconds": 2.0})
    np.testing.assert_array_equal(Store(tmp_path, "sweep").read_curves(block.config, [0, 1]).error, make_curves((0, 1)).error)


def test_files_are_plain_parquet_with_the_promised_columns(tmp_path: Path) -> None:
    store = Store(tmp_path, "sweep")
    block = store_block(store, make_config(), (0, 1))
    curves = pyarrow.parquet.read_table(f"{store.curves.path}/{block.trial_id}.parquet")
    assert curves.column_names == ["trial_id", "seed", "bin", "examples", "error", "dead"]
    assert len(curves) == 2 * 3
    runs = pyarrow.parquet.read_table(f"{store.runs.path}/{block.trial_id}.parquet").to_pylist()
    assert [run["seed"] for run in runs] == [0, 1]
    assert json.loads(runs[0]["config"]) == block.config.model_dump(mode="json")
    assert (runs[0]["trial_id"], runs[0]["host"]) == (block.trial_id, "here")


def test_reading_opens_only_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, "sweep")
    block = store_block(store, make_config(), (0, 1))
    for number in range(3000):
        (tmp_path / "sweep" / "curves" / f"{number:020x}-0_1.parquet").touch()
    opened = []
    read = Folder.read
    monkeypatch.setattr(Folder, "read", lambda self, name: opened.append(name) or read(self, name))
    start = time.process_time()
    Store(tmp_path, "sweep").read_curves(block.config, [0, 1])
    assert opened == [f"{block.trial_id}.parquet"]
    assert time.process_time() - start < 2  # about 0.02 s


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path) / "deep" / "er"
    folder.write("a", b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        folder.write("a", b"new")
    assert folder.read("a") == b"old"
    assert os.listdir(folder.path) == ["a"]


@pytest.mark.parametrize("kind", ["local", "uri", "other"])
def test_a_folder_is_anything_that_pyarrow_opens(kind: str, tmp_path: Path) -> None:
    if kind == "other":
        (tmp_path / "root").mkdir()
        folder = Folder("store", filesystem=fs.SubTreeFileSystem(str(tmp_path / "root"), fs.LocalFileSystem()))
        assert folder.local is None
    else:
        folder = Folder(tmp_path.as_uri() if kind == "uri" else tmp_path)
        assert folder.local == tmp_path
    below = folder / "below"
    assert below.names() == [] and not below.has("a")
    below.write("b", b"2")
    below.write("a", b"1")
    below.write("a", b"3")
    assert below.names() == ["a", "b"] and below.has("a") and below.read("a") == b"3"
    assert folder.folders() == ["below"] and folder.names() == []
    (below / "deep").write("c", b"4")
    assert folder.tree() == ["below/a", "below/b", "below/deep/c"] and (folder / "nothing").tree() == []
    below.remove("deep/c")
    below.remove("a")
    below.remove("a")
    assert below.names() == ["b"]
    with pytest.raises(FileNotFoundError):
        below.read("a")


def test_the_interval_is_students() -> None:
    values = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    band = mean_interval(values)
    # t(0.975, 2) = 4.302653, s/√n = 1/√3
    np.testing.assert_allclose(band.estimate, [2, 5])
    np.testing.assert_allclose(band.high - band.estimate, [4.302653 / np.sqrt(3), 0], atol=1e-6)
    np.testing.assert_allclose(band.estimate - band.low, band.high - band.estimate)
    assert np.isnan(mean_interval(values[:1]).low).all()


def test_tensorboard_shows_figures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (640).to_bytes(4, "big") + (480).to_bytes(4, "big") + b"rest"
    for name, picture in [("fig6", png), ("fig6@smoke", png), ("fig6", png + b"new"), ("fig6", png + b"new")]:
        write_image(Store(tmp_path, "sweep"), name, picture)
    run = EventAccumulator(str(tmp_path / "sweep/tensorboard/figures")).Reload()
    (image,), (small,) = run.Images("fig6"), run.Images("fig6@smoke")
    assert (image.width, image.height, image.encoded_image_string) == (640, 480, png + b"new")
    assert small.encoded_image_string == png
