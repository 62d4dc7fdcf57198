"""The examples in docstrings and in README run as printed."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cbp_ray
import rllib_ext

ROOT = Path(__file__).parent.parent


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


def python_blocks():
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_readme_has_examples():
    assert any("GenerateAndTest" in block for block in python_blocks())


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
