"""Settings of RLlib's configs and of `rllib_ext.train` that nobody meant: one `InputError`, or they work."""

from pathlib import Path
from typing import Any

import pytest
from fuzz_help import answer, efforts, hold, numbers, scalars, texts, values, works_or_refuses
from hypothesis import strategies as st

from cbp_ray.methods import methods
from rllib_ext import ContinualPPOConfig, train

SETTINGS = ["replacement_rate", "maturity_threshold", "decay_rate", "utility", "preset", "replacement", "init", "seed"]
METHODS = sorted(methods())


def config() -> ContinualPPOConfig:
    return ContinualPPOConfig().environment("Pendulum-v1")


@efforts
def test_continual_backprop(effort: str) -> None:
    def check(name: str, value: Any) -> None:
        works_or_refuses(lambda: config().continual_backprop(**{name: value}).validate())

    hold(check, effort, 30, name=st.sampled_from(SETTINGS), value=values)


@efforts
def test_plasticity(effort: str) -> None:
    names = [
        "noise",
        "threshold",
        "every",
        "seed",
        "strength",
        "factor",
        "variant",
        "shrinkage",
        "decay",
        "rate",
        "x",
        "weight_decay",
    ]

    def check(method: Any, settings: dict[str, Any]) -> None:
        works_or_refuses(lambda: config().plasticity(method, **settings).validate())

    settings = st.dictionaries(st.sampled_from(names), values, max_size=3)
    hold(check, effort, 30, method=st.sampled_from(METHODS) | values, settings=settings)


@efforts
def test_training_and_environment(effort: str) -> None:
    def check(name: str, value: Any) -> None:
        works_or_refuses(lambda: config().training(**{name: value}).validate())

    def check_environment(name: Any) -> None:
        works_or_refuses(lambda: ContinualPPOConfig().environment(name).validate())

    hold(check, effort, 20, name=st.sampled_from(["weight_decay", "betas"]), value=values)
    hold(check_environment, effort, 20, name=texts)


OPTIONS = [
    *(
        "--algo",
        "--env",
        "--friction-period",
        "--replacement-rate",
        "--maturity-threshold",
        "--utility",
        "--weight-decay",
        "--lr",
    ),
    *("--seed", "--num-env-runners", "--num-envs-per-env-runner", "--num-learners", "--num-gpus-per-learner", "--address"),
    *("--stop-timesteps", "--stop-iters", "--stop-reward", "--storage-path", "--name", "--checkpoint-freq", "--resume", "--x"),
]


@efforts
def test_options_of_the_script(effort: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that stands before Ray."""

    class Stop(Exception):
        """Stands for the connection to Ray."""

    def connected(*_: Any, **__: Any) -> Any:
        raise Stop

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cbp_ray.sweeps.cluster.connected", connected)

    def program(arguments: list[str]) -> int:
        try:
            return train.main(arguments)
        except Stop:
            return 0

    def check(options: list[tuple[str, str]]) -> None:
        given = [f"{name}={value}" if name != "--resume" else name for name, value in options]
        answer(["--env=Pendulum-v1", *given], program, "python -m rllib_ext.train")
        assert not list(tmp_path.iterdir())

    words = (scalars | numbers).map(str) | texts
    options = st.lists(st.tuples(st.sampled_from(OPTIONS), words), min_size=1, max_size=2)
    hold(check, effort, 60, options=options)
