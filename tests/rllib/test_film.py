"""`cbp-ray film`: a policy is trained, goes on, and is filmed on several frictions."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cbp_ray.cli import main
from rllib_ext import film
from rllib_ext.film import film_scene


@pytest.fixture(autouse=True)
def _short_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(film, "BIN_SIZE", 4096)


@pytest.mark.long
def test_a_film_is_made_and_another_one_needs_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "films" / "ant.gif"
    options = ["--storage", str(tmp_path), "--seconds", "0.4", "--frictions", "0.1,1.5", "--out", str(out)]
    assert main(["film", "--steps", "4096", *options]) == 0
    with Image.open(out) as picture:
        frames = picture.n_frames
        width, height = picture.size
    assert frames == 6 and width > 1.5 * height
    (kept,) = (tmp_path / "film").iterdir()
    assert kept.name == "seed-0-4096.npz"
    before = kept.stat().st_mtime_ns
    assert main(["film", "--steps", "4096", *options]) == 0
    assert kept.stat().st_mtime_ns == before
    printed = capsys.readouterr().out
    assert "friction 0.1: " in printed and f"film: {out}" in printed


def test_a_scene_follows_the_ant_until_it_falls() -> None:
    rng = np.random.default_rng(1)
    scene = film_scene(lambda _: rng.uniform(-1, 1, 8).astype(np.float32), 1.5, 3.0)
    assert len(scene.pictures) == len(scene.distances) == 46
    assert scene.pictures[0].shape == (240, 320, 3) and scene.pictures[0].std() > 5
    if scene.fell_after is not None:
        np.testing.assert_array_equal(scene.pictures[-1], scene.pictures[-2])


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (["--frictions", "1,-2"], "--frictions"),
        (["--frictions", "ice"], "--frictions"),
        (["--out", "ant.mp4"], "--out"),
        (["--steps", "0"], "--steps"),
        (["--storage", "s3://bucket/results"], "--storage"),
        (["--seconds", "1000"], "--seconds"),
    ],
)
def test_bad_input_is_refused_in_one_line(options: list[str], place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["film", *options]) == 2
    error = capsys.readouterr().err
    assert place in error and error.count("\n") == 1
