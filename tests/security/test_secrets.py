"""Secrets stay where they are: not in messages, not in what a job is described by, and pickles of others are not read."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from sweep_help import SMALL

from cbp_ray.cli import main
from cbp_ray.errors import InputError
from cbp_ray.sweeps import jobs
from rllib_ext.train import check_own, parser, read_options

PLACES = [
    "s3://AKIAUSER:verysecret@bucket/cbp",
    "s3://bucket/cbp?secret_key=verysecret&region=x",
    "abfss://container@account/x?account_key=verysecret",
    "mock://user:verysecret@host/x",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a sweep file."""
    (tmp_path / "small.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "command",
    [["status"], ["run", "small.yaml"], ["results", "small"], ["submit", "small.yaml", "--address", "http://127.0.0.1:9"]],
)
def test_a_storage_with_a_key_in_it_is_refused_and_not_quoted(
    command: list[str], place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--storage", place]) == 2
    said = capsys.readouterr()
    assert "--storage: must not hold a password" in said.err and "verysecret" not in said.err + said.out


@pytest.mark.parametrize("place", ["mock:///x/y", "mock://user@host/x"])
def test_a_storage_without_one_is_not(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["status", "--storage", place])
    assert "must not hold a password" not in capsys.readouterr().err


def test_an_address_with_a_password_is_refused_and_not_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--address", "http://user:verysecret@127.0.0.1:9"]) == 2
    said = capsys.readouterr()
    assert "--address: must not hold" in said.err and "verysecret" not in said.err + said.out


def test_what_describes_a_job_has_no_token(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody who may list the jobs of a cluster sees its entry point, environment and metadata."""
    token = "0123456789abcdef" * 4
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("WANDB_API_KEY", "verysecret")
    sent: list[dict[str, Any]] = []

    class Client:
        def __init__(self, address: str) -> None:
            """Connects to nothing."""

        def submit_job(self, **about: Any) -> str:
            sent.append(about)
            return "raysubmit_1"

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Client)
    assert jobs.submit("http://127.0.0.1:9", ["small.yaml", "--storage", "/shared"], folder) == "raysubmit_1"
    (about,) = sent
    assert set(about) == {"entrypoint", "runtime_env", "metadata"} and about["metadata"] == {"program": "cbp-ray"}
    assert list(about["runtime_env"]["env_vars"]) == ["RAY_JOB_STOP_WAIT_TIME_S"]
    assert token not in json.dumps(about) and "verysecret" not in json.dumps(about)


def test_a_run_that_everybody_can_write_to_is_not_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folder / "mine"
    (run / "checkpoint").mkdir(parents=True)
    (run / "tuner.pkl").write_bytes(b"")
    check_own(run)
    (run / "tuner.pkl").chmod(0o666)
    with pytest.raises(InputError, match=r"^--resume: .*tuner.pkl"):
        read_options(["--resume", "--name", "mine", "--storage-path", str(folder)])


def test_a_run_of_somebody_else_is_not_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "theirs").mkdir()
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(InputError, match=r"^--resume: .*belongs to user"):
        check_own(folder / "theirs")


def test_help_says_that_resuming_reads_pickles(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    assert "pickles" in capsys.readouterr().out
