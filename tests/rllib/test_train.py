"""`python -m rllib_ext.train`: options of RLlib's own scripts, checkpoints, resume."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cbp_ray.errors import InputError
from cbp_ray.sweeps import cluster
from rllib_ext.train import main, make_config, parser, read_options

pytestmark = pytest.mark.xdist_group("ray")


def test_options_become_a_config() -> None:
    options = ["--num-env-runners", "3", "--num-envs-per-env-runner", "2", "--num-learners", "2", "--friction-period", "1e5"]
    made = make_config(parser().parse_args([*options, "--replacement-rate", "1e-4", "--utility", "adaptation", "--seed", "4"]))
    assert (made.num_env_runners, made.num_envs_per_env_runner, made.num_learners) == (3, 2, 2)
    assert made.env == "SlipperyAnt-v0" and made.env_config == {"friction": {"period": 100_000}} and made.seed == 4
    settings = made.continual_backprop_settings
    assert settings is not None and (settings["replacement_rate"], settings["maturity_threshold"]) == (1e-4, 500)
    assert settings["utility"] == "adaptation"
    plain = make_config(parser().parse_args(["--weight-decay", "1e-3"]))
    assert plain.continual_backprop_settings is None and plain.weight_decay == 1e-3


def test_other_algorithms_of_rllib() -> None:
    for name in ("APPO", "IMPALA", "SAC", "DQN"):
        environment = "CartPole-v1" if name == "DQN" else "SlipperyAnt-v0"
        assert make_config(parser().parse_args(["--algo", name, "--env", environment])).algo_class.__name__.endswith(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--env", "SliperyAnt-v0"], "--env: must be the name of an environment"),
        (["--env", "CartPole-v1", "--friction-period", "10"], "--friction-period: only SlipperyAnt-v0 has friction"),
        (["--replacement-rate", "2"], "replacement_rate"),
        (["--weight-decay", "-1"], "weight_decay"),
        (["--algo", "DQN"], "--env: DQN must have Discrete actions, got SlipperyAnt-v0 with Box"),
        (["--env", ":x"], "--env: must be the name of an environment, got ':x' (Empty module name)"),
        (["--env", ".:x"], "--env: must be the name of an environment, got '.:x'"),
        (["--env", "..:x"], "--env: must be the name of an environment, got '..:x'"),
        (["--env", "a:b:c"], "--env: must be the name of an environment, got 'a:b:c'"),
        (["--env", "nomod:X-v1"], "No module named 'nomod'"),
        (["--env", "FrozenLake-v1"], "take, vectors for instance, got FrozenLake-v1 with Discrete observations"),
        (["--env", "Blackjack-v1"], "take, vectors for instance, got Blackjack-v1 with Tuple observations"),
        (["--env", "FrozenLake-v1", "--algo", "DQN"], "got FrozenLake-v1 with Discrete observations"),
        (["--resume"], "--name: there is none"),
        (["--address", "ray://elsewhere:10001"], "address: must be HOST:PORT"),
        (["--utility", "overall"], "--utility: must come with --replacement-rate"),
        (["--maturity-threshold", "5"], "--maturity-threshold: must come with --replacement-rate"),
        (["--name", "../elsewhere"], "--name: must be a folder and a name in it"),
        (["--name", "\udcff"], "--name: must be a folder and a name in it"),
    ],
)
def test_bad_input_is_one_line(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*options, "--storage-path", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        ["--num-env-runners", "1e30"],
        ["--num-learners", "1e30"],
        ["--num-envs-per-env-runner", "1e30"],
        ["--num-env-runners", "-1"],
        ["--num-gpus-per-learner", "-1"],
        ["--num-gpus-per-learner", "inf"],
    ],
)
def test_numbers_of_processes_are_checked_at_once(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert options[0] in error and error.count("\n") == 1


def test_a_uri_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--storage-path", "s3://bucket/results"]) == 2
    assert "a URI" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("fails", ["raise LookupError('no licence')", "raise SystemExit('no licence')"])
def test_a_module_of_an_environment_that_fails_is_one_line(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "licensed.py").write_text(fails)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--env", "licensed:Made-v0", "--storage-path", str(tmp_path / "results")]) == 2
    assert capsys.readouterr().err.endswith("got 'licensed:Made-v0' (no licence)\n")


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which Ray is asked for, or a config that RLlib takes seconds for."""

    def started(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was started")

    for name in ("cbp_ray.sweeps.cluster.connected", "ray.init", "rllib_ext.train.make_config"):
        monkeypatch.setattr(name, started)


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("storage", ["/proc/x", "file", "file/x"])
def test_a_storage_that_cannot_be_written_is_refused_before_anything_is_started(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert main(["--env", "CartPole-v1", "--storage-path", storage]) == 2
    error = capsys.readouterr().err
    assert "--storage-path: must be a folder that can be written, got" in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.usefixtures("no_ray")
def test_a_run_that_can_no_longer_be_written_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ppo").mkdir()
    (tmp_path / "ppo" / "options.json").write_text("{}")

    def read_only(dir: Path) -> Any:  # as tempfile calls it
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    assert main(["--resume", "--storage-path", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"got {str(tmp_path / 'ppo')!r} (Read-only file system)" in error and error.count("\n") == 1


WRONG = ["--num-env-runner 3", "--num-env-runners -1", "--num-env-runners two", "--stop-timesteps ten", "--stop-timesteps 1.5"]
WRONG += ["--lr -1", "--lr nan", "--seed 8589934592", "--weight-decay much", "--utility best"]


@pytest.mark.parametrize("options", [option.split() for option in WRONG], ids=WRONG)
def test_an_unknown_option_or_number_is_one_line(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(options)
    error = capsys.readouterr().err
    assert caught.value.code == 2 and error.count("\n") == 1 and "--help" in error
    assert options[0] in error and "function" not in error


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert "--stop-timesteps" in text and "--resume" in text and "python -m rllib_ext.train --num-env-runners 1" in text


def test_a_resumed_run_has_its_own_options(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    call = ["--storage-path", str(tmp_path), "--name", "mine", "--resume"]
    with pytest.raises(InputError, match=r"options\.json"):
        read_options(call)
    started = parser().parse_args(["--replacement-rate", "1e-3", "--stop-timesteps", "5000", "--num-env-runners", "2"])
    stored = {name: value for name, value in vars(started).items() if name not in ("address", "storage_path", "name", "resume")}
    (folder / "options.json").write_text(json.dumps(stored))
    options = read_options(call)
    assert (options.replacement_rate, options.stop_timesteps, options.num_env_runners) == (1e-3, 5000, 2)
    assert options.resume and options.name == "mine"
    # What is said again is allowed, also a default; what contradicts is not, also a default.
    assert read_options([*call, "--num-env-runners", "2"]).num_env_runners == 2
    for option, value in (("--stop-timesteps", "9000"), ("--num-env-runners", "0"), ("--lr", "0.1")):
        with pytest.raises(InputError, match=option):
            read_options([*call, option, value])


def test_a_run_that_does_not_fit_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "connected", lambda address, sweep=True: contextlib.nullcontext())
    monkeypatch.setattr(cluster, "offered", lambda: [{"CPU": 2.0}])
    assert main(["--storage-path", str(tmp_path), "--num-env-runners", "2"]) == 2
    error = capsys.readouterr().err
    assert "--num-env-runners: must fit" in error and "3 cores" in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


# RLlib and Gymnasium warn of names without a version and of networks that can't be built, each in a line more.
@pytest.mark.parametrize("name", ["SliperyAnt-v0", "FrozenLake"])
def test_errors_are_one_line_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rllib_ext.train", "--env", name, "--storage-path", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.timeout(300)
def test_a_run_has_tensorboard_files_and_is_refused_under_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--storage-path", str(tmp_path), "--env", "CartPole-v1", "--seed", "3", "--replacement-rate", "1e-3"]
    assert main([*options, "--stop-iters", "1", "--checkpoint-freq", "1"]) == 0
    assert "done: 4,096 time-steps" in capsys.readouterr().out
    folder = tmp_path / "continual_ppo"
    assert list(folder.glob("*/checkpoint_*")) and list(folder.glob("*/events.out.tfevents.*"))
    assert list(folder.glob("*/progress.csv")) and list(folder.glob("*/result.json"))
    assert main(options) == 2
    assert "there is one already" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rllib_ext.train", "--storage-path", str(tmp_path), "--name", "run"]
    new = ["--num-env-runners", "1", "--seed", "3", "--replacement-rate", "1e-3"]
    new += ["--stop-iters", "24", "--checkpoint-freq", "1"]
    first = subprocess.Popen([*command, *new], start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        # Tune's snapshot follows its checkpoints within ten seconds.
        wait_until(lambda: len(rows(tmp_path / "run")) >= 4)
        time.sleep(12)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    before = rows(tmp_path / "run")
    assert len(before) < 24
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "done: 98,304 time-steps" in done.stdout, done.stdout + done.stderr
    after = rows(tmp_path / "run")
    assert [row["training_iteration"] for row in after][-1] == 24
    # It did not begin anew, and what it repeated came out as before.
    again = [row["training_iteration"] for row in after[len(before) :]]
    assert again[0] >= 3
    returns = {row["training_iteration"]: row["env_runners"].get("episode_return_mean") for row in before}
    for row in after[len(before) :]:
        known = returns.get(row["training_iteration"])
        assert known is None or known == row["env_runners"].get("episode_return_mean")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_does_not_say_that_it_is_done(number: signal.Signals, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "rllib_ext.train",
        "--storage-path",
        str(tmp_path),
        "--name",
        "run",
        "--env",
        "CartPole-v1",
    ]
    run = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(rows(tmp_path / "run")) >= 2)
        os.kill(run.pid, number)
        out, errors = run.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 130 and "done:" not in out, out + errors
    assert errors.splitlines()[-1].endswith("interrupted; go on with --resume")


def rows(folder: Path) -> list[dict[str, Any]]:
    """What Tune has logged, an entry per iteration."""
    lines = [line for path in folder.glob("*/result.json") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("}")]


def wait_until(condition: Callable[[], bool], seconds: float = 240) -> None:
    """Waits, and fails if it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)
