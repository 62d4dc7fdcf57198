"""What other people's scripts rely on: exit codes, one line on stderr, and the same program under both names."""

import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from cbp_ray.cli.main import BENCHMARKS, cli, main
from cbp_ray.errors import InputError
from cbp_ray.figures.registry import FIGURES

COMMANDS = [
    *("run", "reproduce", "plot", "results", "status", "figures", "film", "verify", "mv", "rm", "export", "import"),
    *("submit", "logs", "stop", "data", "bench", "completion"),
]


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cbp_ray", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
    )


def test_help_lists_every_command_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert [line.split()[0] for line in listed.splitlines() if line.strip()] == COMMANDS


def test_without_a_command_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: cbp-ray ")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_examples_as_they_are_typed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    help_lines = capsys.readouterr().out.splitlines()
    examples = help_lines[help_lines.index("  Examples:") + 1 :]
    assert f"cbp-ray {command}" in examples[0]
    # Not wrapped: an example keeps the indentation it has in the source.
    assert examples[0].startswith("    ")


def test_version_names_everything_that_results_depend_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    versions = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert list(versions) == ["cbp-ray", "python", "torch", "ray", "numba"]
    assert versions["cbp-ray"] == version("cbp-ray")


def test_the_command_line_imports_no_heavy_library() -> None:
    code = "import sys, cbp_ray.cli; print(*{'torch', 'ray', 'numba', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


def test_help_answers_at_once() -> None:
    def seconds() -> float:
        # Of processor time: the machine may be busy with other tests.
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        program("--help").check_returncode()
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime

    assert min(seconds() for _ in range(3)) < 0.8


def test_module_and_script_are_the_same_program() -> None:
    script = Path(sys.executable).with_name("cbp-ray")
    by_script = subprocess.run([script, "figurs"], capture_output=True, text=True, timeout=60)
    by_module = program("figurs")
    assert (by_script.returncode, by_script.stderr) == (by_module.returncode, by_module.stderr)
    assert by_module.stderr.startswith("cbp-ray: ")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["figurs"], "cbp-ray"),
        (["frobnicate"], "cbp-ray"),
        (["--vers"], "cbp-ray"),
        (["figures", "--jsn"], "cbp-ray figures"),
        (["figures", "extra"], "cbp-ray figures"),
        (["reproduce"], "cbp-ray reproduce: FIG"),
        (["reproduce", "fig66"], "cbp-ray reproduce: FIG"),
        (["plot", "fig6", "--storage", "/nowhere"], "cbp-ray plot: results in /nowhere"),
        (["reproduce", "fig6", "--scale", "huge"], "cbp-ray reproduce: --scale"),
        (["reproduce", "fig6", "--scale"], "cbp-ray reproduce: Option '--scale'"),
        (["run", "no-such-file.yaml"], "cbp-ray run: CONFIG.yaml"),
        (["submit", __file__], "cbp-ray submit: --address"),
        (["bench", "gtn"], "cbp-ray bench: NAME"),
        (["completion", "tcsh"], "cbp-ray completion: SHELL"),
        (["data", "mnits"], "cbp-ray data: mnist"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_bad_input_is_one_line_that_names_the_place(
    arguments: list[str], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(field)
    assert output.err.endswith("\n") and output.err.count("\n") == 1


def test_bad_input_starts_and_writes_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "cbp_ray", "status", "--storge", "x"], cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command `fail` that ends as the test's parameter says."""

    @click.command()
    def fail() -> int:
        if isinstance(request.param, int):
            return request.param
        raise request.param

    monkeypatch.setitem(cli.commands, "fail", fail)


@pytest.mark.parametrize("failing", [InputError("rate: must lie in [0, 1],\ngot 2; use 0.5")], indirect=True)
@pytest.mark.usefixtures("failing")
def test_an_input_error_from_anywhere_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fail"]) == 2
    assert capsys.readouterr().err == "cbp-ray fail: rate: must lie in [0, 1], got 2; use 0.5\n"


@pytest.mark.parametrize("failing", [KeyboardInterrupt()], indirect=True)
@pytest.mark.usefixtures("failing")
def test_an_interrupt_is_one_line_and_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fail"]) == 130
    assert capsys.readouterr().err == "cbp-ray: interrupted\n"


@pytest.mark.parametrize("failing", [1], indirect=True)
@pytest.mark.usefixtures("failing")
def test_a_command_may_end_with_a_failed_claim() -> None:
    assert main(["fail"]) == 1


@pytest.mark.parametrize("failing", [ZeroDivisionError()], indirect=True)
@pytest.mark.usefixtures("failing")
def test_a_defect_is_not_dressed_up_as_bad_input() -> None:
    with pytest.raises(ZeroDivisionError):
        main(["fail"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_CBP_RAY_COMPLETE={shell}_complete" in script


@pytest.mark.parametrize(
    ("typed", "offered"), [("cbp-ray repr", "reproduce"), ("cbp-ray reproduce fig17", "fig17b"), ("cbp-ray b", "bench")]
)
def test_completion_knows_commands_and_figures(typed: str, offered: str) -> None:
    last = len(typed.split()) - 1
    done = program(_CBP_RAY_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=str(last))
    assert f"plain,{offered}" in done.stdout.split()


def test_figures_as_json_is_the_whole_registry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [figure["key"] for figure in listed] == list(FIGURES)
    assert {"key", "problem", "title", "what", "grid", "claim", "sweep", "cost"} == set(listed[0])


def test_figures_covers_every_result_of_the_paper() -> None:
    drawings = {1, 2, 5}
    numbers = {int(key.removeprefix("fig").rstrip("ab")) for key in FIGURES}
    assert numbers == set(range(1, 21)) - drawings


def test_figures_as_a_table_names_each_figure_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures"]) == 0
    cells = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("│ fig")]
    assert cells == list(FIGURES)


@pytest.mark.parametrize("as_json", [True, False])
def test_bench_prints_what_the_benchmark_returns(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "def run():\n    return {'ratio': 1.5}\ndef render(result):\n    return f'ratio {result[\"ratio\"]}'\n"
    (tmp_path / "made_up_benchmark.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BENCHMARKS, "gnt", "made_up_benchmark")
    assert main(["bench", "gnt", *["--json"] * as_json]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert (json.loads(last) == {"ratio": 1.5}) if as_json else (last == "ratio 1.5")
