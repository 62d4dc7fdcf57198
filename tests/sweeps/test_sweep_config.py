"""Sweep files: what they mean, and what they are refused for."""

import re
import time
from pathlib import Path

import pytest

from cbp_ray.cli import main
from cbp_ray.errors import InputError
from cbp_ray.sweeps import Sweep, load_sweep
from cbp_ray.sweeps.sweep import join

ROOT = Path(__file__).parents[2]
GOOD = """
sweep: name
seeds: 0:10
base: {optimizer: {name: sgd, step_size: 0.01}, examples: 40}
groups:
  cbp: {algorithm: {name: cbp, replacement_rate: [1e-5, 1e-4]}, network: {activation: [tanh, relu]}}
  bp: {algorithm: {name: bp}}
"""


def load(tmp_path: Path, text: str, **options: object) -> Sweep:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return load_sweep(path, **options)  # type: ignore[arg-type]


def rates(sweep: Sweep) -> list[float]:
    return [getattr(c.config.algorithm, "replacement_rate", 0.0) for c in sweep.configurations]


def test_groups_have_their_own_grids(tmp_path: Path) -> None:
    sweep = load(tmp_path, GOOD)
    assert (sweep.name, sweep.seeds, sweep.engine) == ("name", tuple(range(10)), "kernel")
    assert [c.group for c in sweep.configurations] == ["cbp"] * 4 + ["bp"]
    assert rates(sweep) == [1e-5, 1e-5, 1e-4, 1e-4, 0.0]
    assert [c.config.network.activation for c in sweep.configurations] == ["tanh", "relu"] * 2 + ["tanh"]
    assert sweep.runs == 50


def test_a_list_is_a_grid_only_where_one_value_is_expected(tmp_path: Path) -> None:
    sections = "base: {optimizer: {name: adam, step_size: 0.1, betas: [0.9, 0.99]}, algorithm: {name: bp}}"
    sweep = load(tmp_path, f"sweep: a\nseeds: [3, 1]\n{sections}\ngroups: {{a: {{network: {{hidden: [7]}}}}}}")
    assert [c.config.network.hidden for c in sweep.configurations] == [(7,)]
    assert sweep.seeds == (1, 3)
    sweep = load(tmp_path, f"sweep: a\nseeds: 1\n{sections}\ngroups: {{a: {{network: {{hidden: [[7], [8]]}}}}}}")
    assert [c.config.network.hidden for c in sweep.configurations] == [(7,), (8,)]
    assert sweep.configurations[0].config.optimizer.betas == (0.9, 0.99)  # type: ignore[union-attr]


def test_a_list_of_sections_is_a_grid_too(tmp_path: Path) -> None:
    algorithms = "[{name: bp}, {name: l2, weight_decay: [1e-3, 1e-4]}]"
    text = (
        f"sweep: a\nseeds: 1\nbase: {{optimizer: {{name: sgd, step_size: 1e-2}}}}\ngroups: {{a: {{algorithm: {algorithms}}}}}"
    )
    assert [c.config.algorithm.name for c in load(tmp_path, text).configurations] == ["bp", "l2", "l2"]


def test_a_base_with_lists_is_a_grid_without_groups(tmp_path: Path) -> None:
    base = "{optimizer: {name: sgd, step_size: [0.1, 0.01]}, algorithm: [{name: bp}, {name: cbp, replacement_rate: 1e-4}]}"
    sweep = load(tmp_path, f"sweep: a\nseeds: 1\nbase: {base}", overrides=["network.activation=relu"])
    found = [(c.group, c.config.optimizer.step_size, c.config.network.activation) for c in sweep.configurations]
    assert found == [(name, step, "relu") for step in (0.1, 0.01) for name in ("bp", "cbp")]


def test_a_group_may_be_a_list_of_sections_each_of_which_is_a_grid(tmp_path: Path) -> None:
    lines = ["  - {algorithm: {name: bp}, examples: [20, 30]}", "  - {algorithm: {name: l2, weight_decay: 0.1}}"]
    text = "\n".join([GOOD.partition("  cbp:")[0] + "  both:", *lines])
    sweep = load(tmp_path, text, overrides=["optimizer.step_size=0.5"])
    assert [(c.group, c.config.algorithm.name, c.config.examples) for c in sweep.configurations] == [
        ("both", "bp", 20),
        ("both", "bp", 30),
        ("both", "l2", 40),
    ]
    assert {c.config.optimizer.step_size for c in sweep.configurations} == {0.5}


def test_sweeps_that_are_alike_are_joined_with_each_configuration_once(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(GOOD)
    (tmp_path / "second.yaml").write_text(GOOD.replace("[tanh, relu]", "[relu, elu]"))
    (tmp_path / "third.yaml").write_text(GOOD.replace("0:10", "0:5"))
    first, second, third = (load_sweep(tmp_path / f"{name}.yaml") for name in ("first", "second", "third"))
    assert join([first], "all") == [first]
    one, other = join([first, second, third], "all")
    assert [c.group for c in one.configurations] == ["first.cbp"] * 4 + ["first.bp"] + ["second.cbp"] * 2
    assert {c.config for c in one.configurations} == {c.config for s in (first, second) for c in s.configurations}
    assert (one.source, one.seeds, other.source, other.seeds) == ("all-1", first.seeds, "all-2", third.seeds)


def test_the_same_configuration_is_run_once(tmp_path: Path) -> None:
    text = GOOD + "  again: {algorithm: {name: bp}, network: {activation: [tanh, relu]}}\n"
    assert [c.group for c in load(tmp_path, text).configurations] == ["cbp"] * 4 + ["bp", "again"]


@pytest.mark.parametrize(("written", "number"), [("1e-4", 1e-4), ("1.E-4", 1e-4), ("'1e-4'", 1e-4), (".5", 0.5), ("1", 1.0)])
def test_numbers_are_read_as_people_write_them(written: str, number: float, tmp_path: Path) -> None:
    assert rates(load(tmp_path, GOOD.replace("[1e-5, 1e-4]", written)))[0] == number
    assert load(tmp_path, GOOD.replace("examples: 40", "examples: 1_000")).configurations[0].config.examples == 1000
    assert load(tmp_path, GOOD.replace("examples: 40", "examples: 1e3")).configurations[0].config.examples == 1000
    # YAML 1.1 would read eight.
    assert load(tmp_path, GOOD.replace("examples: 40", "examples: 010")).configurations[0].config.examples == 10


@pytest.mark.parametrize(
    ("written", "seeds"),
    [("0:3", (0, 1, 2)), ("1:30", tuple(range(1, 30))), ("7", (7,)), ("[5, 0:2]", (0, 1, 5)), ("'2:4'", (2, 3))],
)
def test_seeds_are_ranges_or_lists(written: str, seeds: tuple[int, ...], tmp_path: Path) -> None:
    assert load(tmp_path, GOOD.replace("0:10", written)).seeds == seeds
    assert load(tmp_path, GOOD, seeds="4:6").seeds == (4, 5)
    assert load(tmp_path, GOOD, seeds="1,2, 5:9").seeds == (1, 2, 5, 6, 7, 8)
    assert load(tmp_path, GOOD.replace("0:10", "1,2,5:9")).seeds == (1, 2, 5, 6, 7, 8)
    assert load(tmp_path, GOOD, seeds=range(2)).seeds == (0, 1)


def test_includes_are_merged_first(tmp_path: Path) -> None:
    (tmp_path / "common.yaml").write_text(GOOD)
    sweep = load(
        tmp_path, "include: [common.yaml]\nsweep: other\nbase: {examples: 20}\ngroups: {bp: {network: {activation: relu}}}"
    )
    assert sweep.name == "other" and len(sweep.configurations) == 5
    assert {c.config.examples for c in sweep.configurations} == {20}
    assert sweep.configurations[-1].config.network.activation == "relu"


def test_a_section_of_another_name_replaces_the_section(tmp_path: Path) -> None:
    text = GOOD.replace("bp: {algorithm", "adam: {optimizer: {name: adam, step_size: 0.1}, algorithm")
    assert load(tmp_path, text).configurations[-1].config.optimizer.step_size == 0.1


def test_overrides_reach_every_group_or_the_file_itself(tmp_path: Path) -> None:
    sweep = load(tmp_path, GOOD, overrides=["optimizer.step_size=1e-3", "network.activation=[elu, swish]"])
    assert {c.config.optimizer.step_size for c in sweep.configurations} == {1e-3}
    assert {c.config.network.activation for c in sweep.configurations} == {"elu", "swish"}
    sweep = load(tmp_path, GOOD, overrides=["groups.cbp.algorithm.replacement_rate=0.5", "seeds=0:2", "base.examples=7"])
    assert set(rates(sweep)) == {0.5, 0.0} and sweep.seeds == (0, 1)
    assert load(tmp_path, GOOD, overrides=["resources.gpu=0.25"]).resources.gpu == 0.25


def test_scales_are_overlays(tmp_path: Path) -> None:
    text = GOOD + "scales: {smoke: {seeds: 0:2, base: {examples: 4}}, laptop: {}}"
    assert load(tmp_path, text).seeds == load(tmp_path, text, scale="laptop").seeds == tuple(range(10))
    smoke = load(tmp_path, text, scale="smoke")
    assert smoke.seeds == (0, 1) and smoke.configurations[0].config.examples == 4
    with pytest.raises(InputError, match=r"^file.yaml: scale: "):
        load(tmp_path, GOOD, scale="smoke")


def test_as_many_seeds_as_are_allowed_are_read_at_once(tmp_path: Path) -> None:
    begun = time.process_time()
    assert len(load(tmp_path, GOOD, seeds="0:1000000").seeds) == 1_000_000
    assert time.process_time() - begun < 2


BROKEN = {
    "empty file": ("", "file.yaml"),
    "not yaml": ("sweep: [", "file.yaml line 2"),
    "a list": ("- a", "file.yaml"),
    "key twice": (GOOD + "seeds: 0:3\n", "file.yaml line 8"),
    "list as a key": (GOOD + "? [a, b]\n: 1\n", "file.yaml line 8"),
    "tag that does not fit": (GOOD + "engine: !!timestamp abc\n", "file.yaml"),
    "misspelt key": (GOOD.replace("seeds:", "sedes:"), "sedes"),
    "no name": (GOOD.replace("sweep: name", ""), "sweep"),
    "name of another folder": (GOOD.replace("sweep: name", "sweep: figures"), "sweep"),
    "path as name": (GOOD.replace("sweep: name", "sweep: ../x"), "sweep"),
    "overrides in a file": (GOOD + "overrides: {examples: 3}\n", "overrides"),
    "truth as cores": (GOOD + "resources: {cpu: true}\n", "resources.cpu"),
    "truth as samples": (GOOD + "tune: {samples: true, space: {examples: {choice: [9]}}}\n", "tune.samples"),
    "no seeds": (GOOD.replace("seeds: 0:10", ""), "seeds"),
    "empty seeds": (GOOD.replace("0:10", "5:5"), "seeds"),
    "seeds backwards": (GOOD.replace("0:10", "9:3"), "seeds"),
    "seed twice": (GOOD.replace("0:10", "[1, 1]"), "seeds"),
    "negative seed": (GOOD.replace("0:10", "[-1]"), "seeds"),
    "seeds as words": (GOOD.replace("0:10", "many"), "seeds"),
    "too many seeds": (GOOD.replace("0:10", "0:99999999999"), "seeds"),
    "too many seeds together": (GOOD.replace("0:10", "[0:1000000, 2000000]"), "seeds"),
    "unknown engine": (GOOD + "engine: jax\n", "engine"),
    "nothing to run": ("sweep: a\nseeds: 0:2\n", "base.algorithm"),
    "groups as a list": ("sweep: a\nseeds: 0:2\ngroups: [a]\n", "groups"),
    "no groups in groups": ("sweep: a\nseeds: 0:2\ngroups: {}\n", "groups"),
    "group as a word": ("sweep: a\nseeds: 0:2\ngroups: {a: bp}\n", "groups.a"),
    "group as a list of words": ("sweep: a\nseeds: 0:2\ngroups: {a: [bp]}\n", "groups.a"),
    "base as a list": (GOOD.replace("base: {optimizer: {name: sgd, step_size: 0.01}, examples: 40}", "base: [1]"), "base"),
    "unknown setting": (GOOD.replace("step_size", "step_sise"), "groups.cbp.optimizer.step_sise"),
    "unknown algorithm": (GOOD.replace("{name: bp}", "{name: backprop}"), "groups.bp.algorithm.name"),
    "no algorithm": (GOOD.replace("bp: {algorithm: {name: bp}}", "bp: {}"), "groups.bp.algorithm"),
    "rate above one": (GOOD.replace("1e-4", "2.0"), "groups.cbp.algorithm.replacement_rate"),
    "rate as a word": (GOOD.replace("1e-4", "high"), "groups.cbp.algorithm.replacement_rate"),
    "negative step": (GOOD.replace("0.01", "-0.01"), "groups.cbp.optimizer.step_size"),
    "infinite step": (GOOD.replace("0.01", ".inf"), "groups.cbp.optimizer.step_size"),
    "no examples": (GOOD.replace("examples: 40", "examples: 0"), "groups.cbp.examples"),
    "half an example": (GOOD.replace("examples: 40", "examples: 1.5"), "groups.cbp.examples"),
    "unknown activation": (GOOD.replace("relu", "gelu"), "groups.cbp.network.activation"),
    "empty grid": (GOOD.replace("[tanh, relu]", "[]"), "groups.cbp.network.activation"),
    "two layers for the kernel": (GOOD.replace("activation: [tanh, relu]", "hidden: [5, 5]"), "groups.cbp.network.hidden"),
    "more flips than bits": (GOOD.replace("examples: 40", "problem: {flipping_bits: 30}"), "groups.cbp.problem.flipping_bits"),
    "an anchor that contains itself": (GOOD.replace("groups:", "groups: &a\n  more: *a"), "file.yaml"),
    "missing include": ("include: nowhere.yaml\n" + GOOD, "nowhere.yaml"),
    "include of a device": ("include: /dev/zero\n" + GOOD, "zero"),
    "include of a list": ("include: list.yaml\n" + GOOD, "list.yaml"),
    "a layer too wide": (GOOD.replace("activation: [tanh, relu]", "hidden: [1000000000]"), "groups.cbp.network.hidden.0"),
    "include of itself": ("include: file.yaml\n" + GOOD, "file.yaml: include"),
    "unknown scale": (GOOD + "scales: {tiny: {}}\n", "scales.tiny"),
    "unknown key in a scale": (GOOD + "scales: {smoke: {sedes: 1}}\n", "scales.smoke.sedes"),
    "unknown resource": (GOOD + "resources: {cpus: 1}\n", "resources.cpus"),
    "no cpu": (GOOD + "resources: {cpu: 0}\n", "resources.cpu"),
    "search without a space": (GOOD + "tune: {samples: 3}\n", "tune.space"),
    "search over nothing known": (
        GOOD + "tune: {samples: 3, space: {algorithm.rate: {uniform: [0, 1]}}}\n",
        "tune.space for groups.cbp: algorithm.rate",
    ),
    "search with bad limits": (
        GOOD + "tune: {samples: 3, space: {optimizer.step_size: {loguniform: [0, 1]}}}\n",
        "tune.space.optimizer.step_size.loguniform",
    ),
    "search for an unknown metric": (
        GOOD + "tune: {samples: 3, metric: eror, space: {examples: {choice: [9]}}}\n",
        "tune.metric",
    ),
    "search that is not installed": (
        GOOD + "tune: {samples: 3, search: magic, space: {examples: {choice: [9]}}}\n",
        "tune.search",
    ),
}


@pytest.mark.parametrize(("text", "field"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_refused_in_one_line_and_nothing_is_written(
    text: str, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    (tmp_path / "list.yaml").write_text("[a secret]")
    assert main(["run", str(path), "--storage", str(tmp_path / "results")]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.removeprefix("cbp-ray run: ").startswith((f"{field}: ", f"file.yaml: {field}: "))
    assert "secret" not in output.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file.yaml", "list.yaml"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--set", "optimizer.step_size"], "file.yaml: --set"),
        (["--set", "optimizr.step_size=1"], "file.yaml: groups.cbp.optimizr"),
        (["--set", "=1"], "file.yaml: --set"),
        (["--set", "seeds=[1"], "file.yaml: --set seeds line 2"),
        (["--seeds", "x"], "file.yaml: seeds"),
        (["--scale", "smoke"], "file.yaml: scale"),
        (["--storage", __file__], "--storage"),
        (["--storage", "/proc/results"], "--storage"),
        (["--storage", "nonsense://x"], "--storage"),
        (["--address", "ray://here:10001"], "address"),
        (["--address", "http://here:8265"], "address"),
    ],
    ids=" ".join,
)
def test_bad_options_are_refused_in_one_line(
    arguments: list[str], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(GOOD)
    assert main(["run", str(path), "--storage", str(tmp_path / "results"), *arguments]) == 2
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and output.err.startswith(f"cbp-ray run: {field}: ")
    assert [p.name for p in tmp_path.iterdir()] == ["file.yaml"]


FILES = sorted((ROOT / "tune_configs").rglob("*.yaml"))
INCLUDED = {name for path in FILES for name in re.findall(r"^include: *(.*)", path.read_text(), re.MULTILINE)}
# What others include may be a fragment; it is tested as part of them.
WHOLE = [path for path in FILES if path.name not in " ".join(INCLUDED)]


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_of_the_project_loads_at_every_scale_it_has(path: Path) -> None:
    paper = load_sweep(path)
    smoke = load_sweep(path, scale="smoke")
    assert 0 < smoke.runs * smoke.configurations[0].config.examples <= 10_000_000
    assert paper.configurations


def test_dry_run_says_what_would_happen_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(GOOD)
    assert main(["run", str(path), "--dry-run", "--storage", str(tmp_path / "results")]) == 0
    output = capsys.readouterr().out
    assert "5 configurations x 10 seeds (0:10) = 50 runs" in output
    assert "50 runs in 5 trials" in output and "MB of memory" in output
    assert [p.name for p in tmp_path.iterdir()] == ["file.yaml"]
