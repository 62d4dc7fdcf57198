"""A Ray of our own that does not start: one line and exit code 1."""

from pathlib import Path

import pytest
import ray
from ray import tune
from ray.exceptions import GetTimeoutError

from cbp_ray.cli.main import main
from cbp_ray.errors import ClusterError
from cbp_ray.own_ray import start_ray

SWEEP = """
sweep: never
seeds: 0:2
base: {optimizer: {name: sgd, step_size: 0.01}, algorithm: {name: bp}, examples: 2000, bin_size: 1000}
"""


def never(**_: object) -> None:
    raise Exception("The current node timed out during startup.\nThe GCS may be overloaded.")


def test_a_ray_that_does_not_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray, "init", never)
    with pytest.raises(ClusterError, match=r"^Ray did not start .*timed out during startup\. The GCS"):
        start_ray()
    path = tmp_path / "never.yaml"
    path.write_text(SWEEP)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["run", str(path), "--storage", str(tmp_path / "results")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("cbp-ray run: Ray did not start") and not any("Traceback" in line for line in said)


def test_a_gcs_that_does_not_answer_tune_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(_: tune.Tuner) -> None:
        raise GetTimeoutError("There was timeout in removing the placement group.\nThe GCS may be dead.")

    monkeypatch.setattr(tune.Tuner, "fit", late)
    path = tmp_path / "never.yaml"
    path.write_text(SWEEP)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["run", str(path), "--storage", str(tmp_path / "results")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith(
        "cbp-ray run: Ray does not answer (There was timeout in removing the placement group. The GCS may"
    )
    assert not any("Traceback" in line for line in said)
