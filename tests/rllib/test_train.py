"""`python -m rllib_ext.train`: options of RLlib's own scripts, checkpoints, resume."""

from pathlib import Path

import pytest

from rllib_ext.train import main, make_config, parser

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
        (["--resume"], "--name: there is none"),
        (["--address", "ray://elsewhere:10001"], "address: must be HOST:PORT"),
    ],
)
def test_bad_input_is_one_line(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*options, "--storage-path", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [["--num-env-runner", "3"], ["--num-env-runners", "-1"], ["--stop-timesteps", "ten"]])
def test_an_unknown_option_or_number_is_one_line(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(options)
    error = capsys.readouterr().err
    assert caught.value.code == 2 and error.count("\n") == 1 and "--help" in error


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert "--stop-timesteps" in text and "--resume" in text and "python -m rllib_ext.train --num-env-runners 2" in text


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_run_is_kept_refused_under_its_name_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--storage-path", str(tmp_path), "--num-env-runners", "1", "--seed", "3", "--replacement-rate", "1e-3"]
    assert main([*options, "--stop-timesteps", "8192", "--checkpoint-freq", "1"]) == 0
    assert "done: 8,192 time-steps" in capsys.readouterr().out
    folder = tmp_path / "continual_ppo"
    assert list(folder.glob("*/checkpoint_*")) and list(folder.glob("*/events.out.tfevents.*"))
    assert main(options) == 2
    assert "there is one already" in capsys.readouterr().err
    assert main([*options, "--resume"]) == 0
