"""The examples in docstrings and in README run as printed, and what the pages refer to exists."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cbp_ray
import rllib_ext
from cbp_ray.problems import PROBLEMS
from cbp_ray.sweeps import load_sweep

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FOLDERS = ("cbp_ray", "rllib_ext", "tests", "benchmarks", "docs", "tune_configs", "examples")
MOST_BYTES = 9_000
"""Length of README that a newcomer reads to its end."""


def modules_with_examples():
    packages = [*pkgutil.walk_packages(cbp_ray.__path__, "cbp_ray."), *pkgutil.walk_packages(rllib_ext.__path__, "rllib_ext.")]
    names = [m.name for m in packages if not m.name.endswith("__main__")]
    for name in names:
        source = importlib.util.find_spec(name).origin
        if source and ">>>" in Path(source).read_text():
            yield name


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


def python_blocks(page="README.md"):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_readme_has_examples():
    assert any("GenerateAndTest" in block for block in python_blocks())


def test_every_metric_is_documented():
    page = (ROOT / "docs" / "metrics.md").read_text()
    names = {name for problem in PROBLEMS.values() for name in (*problem.metrics, *problem.diagnostics)}
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= MOST_BYTES


def test_the_sweep_in_readme_is_what_it_says(tmp_path):
    (text,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    file = tmp_path / "first.yaml"
    file.write_text(text)
    sweep = load_sweep(file)
    assert (sweep.name, len(sweep.configurations), len(sweep.seeds)) == ("first", 4, 30)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_of_a_page_exist(page):
    text = page.read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`", text)
    missing = {link for link in links if link and not (page.parent / link).exists()}
    assert missing | {name for name in named if not (ROOT / name).exists()} == set()


LONG = ("permuted_mnist", "ContinualPPOConfig")


def marks_of(block):
    """An example that starts Ray runs when no other test has one: it would find that cluster, and join it."""
    marks = [pytest.mark.long] * any(word in block for word in LONG)
    return marks + [pytest.mark.xdist_group("ray")] * ("ContinualPPOConfig" in block)


@pytest.mark.parametrize(
    "number",
    [pytest.param(i, marks=marks_of(block)) for i, block in enumerate(python_blocks())],
)
def test_examples_in_readme(number, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(python_blocks()[number])
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


SHORTER = {"residual_images": ["--tasks", "2", "--seeds", "1", "--processes", "1"]}
"""Arguments with which examples that take minutes take seconds."""


@pytest.mark.parametrize(
    "script",
    [pytest.param(script, id=script.stem, marks=pytest.mark.long) for script in sorted((ROOT / "examples").glob("*.py"))],
)
def test_example_scripts(script, tmp_path):
    command = [sys.executable, str(script), *SHORTER.get(script.stem, [])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_example_of_the_page_on_networks_runs(tmp_path):
    (block,) = python_blocks("docs/networks.md")
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


METHOD_RUN = """
from cbp_ray import run_online

config = {"algorithm": {"name": "shrink"}, "optimizer": {"name": "sgd", "step_size": 0.01}, "examples": 20, "bin_size": 10}
print(run_online(config, seeds=[0], engine="torch").error.shape)
"""


@pytest.mark.long
def test_the_method_in_the_page_on_architecture_runs(tmp_path):
    (block,) = python_blocks("docs/architecture.md")
    (tmp_path / "shrink.py").write_text(block)
    script = tmp_path / "run.py"
    script.write_text(METHOD_RUN)
    environment = os.environ | {"CBP_RAY_METHODS": "shrink:Shrink"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == (0, "(1, 2)\n"), done.stderr
