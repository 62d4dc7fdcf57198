"""Sweep files, `--set`, `--seeds` and `--scale` that nobody meant: refused in one line, or a plan; nothing is written."""

import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzz_help import answer, bounded_memory, changed, damaged, efforts, hold, scalars, texts, values
from hypothesis import assume
from hypothesis import strategies as st

from cbp_ray.sweeps import sweep_file

GOOD: dict[str, Any] = {
    "sweep": "name",
    "seeds": "0:4",
    "engine": "kernel",
    "resources": {"cpu": 1, "gpu": 0, "memory_mb": 100},
    "loggers": [],
    "base": {
        "optimizer": {"name": "adam", "step_size": 0.01, "betas": [0.9, 0.99], "epsilon": 1e-8},
        "problem": {
            "name": "bit_flipping",
            "inputs": 8,
            "flipping_bits": 5,
            "flip_period": 50,
            "target_units": 10,
            "beta": 0.7,
        },
        "network": {"hidden": [5], "activation": ["tanh", "relu"], "layer_norm": False, "input_norm": 0.0},
        "examples": 400,
        "bin_size": 100,
        "dtype": "float32",
        "diagnostics": False,
    },
    "groups": {
        "cbp": {"algorithm": {"name": "cbp", "replacement_rate": [1e-4, 1e-3], "maturity_threshold": 10, "decay_rate": 0.9}},
        "l2": [{"algorithm": {"name": "l2", "weight_decay": 0.1}}, {"algorithm": {"name": "bp"}}],
    },
    "scales": {"smoke": {"seeds": "0:2"}, "laptop": {"base": {"examples": 200}}},
}
SEARCH: dict[str, Any] = {
    **{key: value for key, value in GOOD.items() if key not in ("groups", "scales")},
    "groups": {"cbp": {"algorithm": {"name": "cbp", "replacement_rate": 1e-4}}},
    "tune": {
        "metric": "error",
        "mode": "min",
        "samples": 3,
        "seed": 1,
        "search": "random",
        "scheduler": {"name": "asha", "grace_bins": 2, "reduction_factor": 3},
        "space": {"algorithm.replacement_rate": {"loguniform": [1e-6, 1e-2]}, "network.hidden": {"choice": [[4], [5]]}},
    },
}
PROBLEMS: list[dict[str, Any]] = [
    {"name": "permuted_mnist", "task_length": 500},
    {"name": "slippery_ant", "friction_period": 5000},
    {"name": "bit_flipping"},
]
OTHERS = [
    {"sweep": "a", "seeds": 0, "engine": engine, "base": {"problem": p, "optimizer": o, "algorithm": a}}
    for engine, p in (("torch", PROBLEMS[0]), ("rllib", PROBLEMS[1]), ("torch", PROBLEMS[2]))
    for o in ({"name": "adam", "step_size": 1e-4},)
    for a in (
        {"name": "bp"},
        {"name": "cbp", "replacement_rate": 1e-4},
        {"name": "redo", "threshold": 0.1},
        {"name": "upgd", "noise": 0.1},
    )
]
# Dates are what YAML makes of 2020-01-01.
odd = values | st.dates() | st.just(datetime.datetime(2020, 1, 1)) | st.binary(max_size=3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: it holds the sweep file, and nothing else in the end."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dry_run(folder: Path, content: bytes, *options: str) -> int:
    (folder / "file.yaml").write_bytes(content)
    said = answer(["run", "file.yaml", "--dry-run", *options])
    assert said.code in (0, 2)
    assert [path.name for path in folder.iterdir()] == ["file.yaml"]
    return said.code


def as_yaml(document: Any) -> bytes:
    try:
        return yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, TypeError):  # keys that can't be sorted, say
        assume(False)
        raise AssertionError from None


@efforts
def test_documents_of_a_sweep(folder: Path, effort: str) -> None:
    good = st.sampled_from([GOOD, GOOD, SEARCH, *OTHERS])

    def check(document: Any, scale: list[str]) -> None:
        dry_run(folder, as_yaml(document), *scale)

    assert all(dry_run(folder, as_yaml(document)) == 0 for document in [GOOD, SEARCH, *OTHERS])
    scales = st.sampled_from([[], ["--scale", "smoke"], ["--scale", "laptop", "--json"]])
    hold(check, effort, 150, document=changed(good, odd), scale=scales)


@efforts
def test_text_of_a_sweep(folder: Path, effort: str) -> None:
    def check(content: bytes) -> None:
        dry_run(folder, content)

    hold(check, effort, 150, content=damaged(as_yaml(GOOD)))


@efforts
def test_any_text(folder: Path, effort: str) -> None:
    pieces = st.sampled_from(
        ["- ", "? ", ": ", "[", "]", "{", "}", "&a ", "*a", "!!set", "!!python/name:os.system ", "<<: ", "\n"]
    )

    def check(parts: list[str]) -> None:
        dry_run(folder, "".join(parts).encode("utf-8", "replace"))

    hold(check, effort, 100, parts=st.lists(pieces | texts, max_size=12))


SETTINGS = [
    *("optimizer.step_size", "algorithm.name", "network.hidden", "base.examples", "bin_size", "seeds", "sweep", "groups"),
    *(
        "groups.cbp.algorithm.replacement_rate",
        "tune.samples",
        "loggers",
        "resources.cpu",
        "problem.inputs",
        "engine",
        "scales",
    ),
    *("problem.target_units", "problem.flipping_bits", "problem.flip_period", "algorithm.maturity_threshold", "include"),
]


@efforts
def test_set_and_seeds(folder: Path, effort: str) -> None:
    content = as_yaml(GOOD)
    path = st.sampled_from(SETTINGS) | texts
    value = st.one_of(scalars.map(str), texts, values.map(repr))
    seeds = (
        st.none() | texts | st.lists(st.sampled_from(["0", "9" * 40, "1:3", "3:1", ":", ",", "1e3", " 5 ", "-1"])).map(",".join)
    )

    def check(path: str, value: str, equals: str, seeds: str | None) -> None:
        # As one argument: what begins with a dash is no option.
        dry_run(folder, content, f"--set={path}{equals}{value}", *([] if seeds is None else [f"--seeds={seeds}"]))

    hold(check, effort, 150, path=path, value=value, equals=st.sampled_from(["=", "=", "=", "", "=="]), seeds=seeds)


HEAD = "sweep: a\nseeds: 1\n"
BOMBS = {
    "deep lists": "a: " + "[" * 100_000,
    "deep dashes": "- " * 100_000,
    "deep keys": "? " * 100_000,
    "aliases": "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]),
    "merges": "\n".join(["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 60))]),
    "merges in place": "a: {<<: " * 50 + "&a {x: 1}" + ", <<: *a}" * 50,
    "itself": "a: &a [*a]",
    "grid": f"{HEAD}base: {{examples: &l {list(range(1, 90))}, bin_size: *l, problem: {{inputs: *l, target_units: *l}}}}",
    "section": f"{HEAD}base: {{problem: {{inputs: &l {list(range(1, 500))}, target_units: *l, flip_period: *l}}}}",
    "long line": f"sweep: {'x' * 3_000_000}",
    "seeds": "sweep: a\nseeds: [" + "0:1000000, " * 100_000 + "]\nbase: {}",
    "digits": "sweep: a\nseeds: " + "9" * 10_000,
    "space": "sweep: a\nseeds: 1\ntune: {samples: 1, space: {"
    + ", ".join(f"algorithm.x{i}: {{uniform: [0, 1]}}" for i in range(60))
    + "}}\nbase: {optimizer: {name: sgd, step_size: 0.1}, algorithm: {name: bp}}",
    "samples": yaml.safe_dump(SEARCH).replace("samples: 3", f"samples: {10**12}"),
    "bins": f"{HEAD}base: " + "{optimizer: {name: sgd, step_size: 1}, algorithm: {name: bp}, examples: 1e18, bin_size: 1}",
    "width": "sweep: a\nseeds: 1\nengine: torch\n"
    "base: {optimizer: {name: sgd, step_size: 1}, algorithm: {name: bp}, network: {hidden: [1000000, 1000000]}}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_asks_for_much_is_refused_at_once(name: str, folder: Path) -> None:
    with bounded_memory():
        assert dry_run(folder, BOMBS[name].encode()) == 2


def test_includes_that_grow_like_powers_are_refused(folder: Path) -> None:
    for number in range(30):
        (folder / f"f{number}.yaml").write_text(f"include: [f{number + 1}.yaml, f{number + 1}.yaml]\n")
    (folder / "f30.yaml").write_text("sweep: a\n")
    said = answer(["run", "f0.yaml", "--dry-run"])
    assert said.code == 2 and str(sweep_file.MOST_FILES) in said.err


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "loop.yaml", "pipe", ".", "", "/dev/zero", "/proc/self/mem", "/proc/kmsg"])
def test_what_can_t_be_included_is_one_line(name: str, folder: Path) -> None:
    import os

    os.mkfifo(folder / "pipe")
    (folder / "loop.yaml").symlink_to(folder / "loop.yaml")
    (folder / "file.yaml").write_text(yaml.safe_dump({"include": [name], **GOOD}))
    assert answer(["run", "file.yaml", "--dry-run"]).code == 2


@pytest.mark.parametrize("text", ["root:*:20228:0:99999:7:::\n", "auths: {r: {auth: SECRET}}\n", "SECRET: 1\nbase: {}\n"])
def test_what_is_included_and_no_sweep_file_is_not_quoted(text: str, folder: Path) -> None:
    (folder / "other.yaml").write_text(text)
    (folder / "file.yaml").write_text(yaml.safe_dump({"include": ["other.yaml"], **GOOD}))
    said = answer(["run", "file.yaml", "--dry-run"])
    assert said.code == 2 and "other.yaml (included by file.yaml)" in said.err
    assert not any(secret in said.err for secret in ("root", "20228", "SECRET", "auth"))


def test_a_misspelt_setting_of_an_included_file_is_named(folder: Path) -> None:
    (folder / "other.yaml").write_text("sedes: 0:3\n")
    (folder / "file.yaml").write_text(yaml.safe_dump({"include": ["other.yaml"], **GOOD}))
    said = answer(["run", "file.yaml", "--dry-run"])
    assert said.code == 2 and "'seeds'" in said.err


@pytest.mark.parametrize("name", ["../x", "..", "/tmp/x", "a/b", "a\\b", ".hidden", "x" * 101, "a\n", "figures", "~", "con\0"])
@pytest.mark.parametrize("place", ["sweep", "group"])
def test_names_in_a_file_can_t_lead_out_of_the_storage(name: str, place: str, folder: Path) -> None:
    document = {**GOOD, "sweep": name} if place == "sweep" else {**GOOD, "groups": {name: GOOD["groups"]["cbp"]}}
    if place == "group" and name == "figures":
        return
    assert dry_run(folder, yaml.safe_dump(document).encode()) == 2
