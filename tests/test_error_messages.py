"""Complete messages, word for word: the one place that changes when a message is reworded."""

import runpy
import sys
from pathlib import Path

import pytest

from cbp_ray.cli import main

FILE = """
sweep: name
seeds: 0:10
base: {optimizer: {name: sgd, step_size: 0.01}, algorithm: {name: cbp, replacement_rate: 1e-4}}
"""
MESSAGES = [
    (["figurs"], FILE, "cbp-ray: unknown command 'figurs'; did you mean figures?"),
    (["figures", "--jsn"], FILE, "cbp-ray figures: unknown option --jsn; did you mean --json?"),
    (
        ["bench", "gtn"],
        FILE,
        "cbp-ray bench: NAME: must be one of gnt, bit-flipping, mnist, rivals, ant, learner, sweep, scaling, got 'gtn'; "
        "did you mean 'gnt'?",
    ),
    (["run"], FILE, "cbp-ray run: CONFIG.yaml: is required, got nothing; see: cbp-ray run --help"),
    (
        ["run", "file.yaml"],
        FILE.replace("seeds", "sedes"),
        "cbp-ray run: file.yaml: sedes: unknown setting, got '0:10'; did you mean 'seeds'?",
    ),
    (
        ["run", "file.yaml"],
        FILE.replace("0:10", "9:3"),
        "cbp-ray run: file.yaml: seeds: must have START below STOP, got '9:3'; use 3:9",
    ),
    (
        ["run", "file.yaml"],
        FILE.replace("1e-4", "2.0"),
        "cbp-ray run: file.yaml: base.algorithm.replacement_rate: input should be less than or equal to 1, got 2.0; change it",
    ),
    (
        ["run", "file.yaml"],
        FILE.replace("name: cbp", "name: cpb"),
        "cbp-ray run: file.yaml: base.algorithm.name: must be one of bp, l2, online_norm, cbp, linear, full_reset, l2_init, "
        "wasserstein, shrink_perturb, clipping, upgd, swr, redo, snr_geometric, got 'cpb'; "
        "did you mean 'cbp'?",
    ),
    (
        ["run", "file.yaml", "--address", "http://here:8265"],
        FILE,
        "cbp-ray run: address: must be HOST:PORT of a cluster that this machine is part of, or auto, got 'http://here:8265'; "
        "use `cbp-ray submit --address http://HOST:8265` from elsewhere",
    ),
]


@pytest.mark.parametrize(("arguments", "text", "message"), MESSAGES, ids=[message[:50] for _, _, message in MESSAGES])
def test_messages_say_field_rule_value_and_fix(
    arguments: list[str],
    text: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.yaml").write_text(text)
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"{message}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file.yaml"]


@pytest.mark.parametrize(
    "word",
    ["foo", "foo-10", "trials", "trials-0", "trials-ten", pytest.param("trials-" + "9" * 5000, id="thousands of digits")],
)
def test_a_point_that_the_scaling_benchmark_does_not_have_is_one_line(
    word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scaling", word])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "scaling.py"), run_name="__main__")
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        f"python -m cbp_ray_benchmarks.scaling: argument PART-SIZE: {word!r} is no point; write a part (trials, nodes, seeds, "
        "worker, reports, live) and a size: trials-10\n"
    )
