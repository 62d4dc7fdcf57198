"""The structure of the code, checked on its syntax trees: imports point one way, and the house rules hold.

cli -> figures -> sweeps -> results -> experiments -> (problems, kernels, algorithm) -> leaves. A layer may import any
layer below it, never one above or beside it.
"""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import cbp_ray

ROOT = Path(__file__).parents[1]

# From top to bottom. Names are those below `cbp_ray`; "cbp_ray" is the package itself, whose `__init__` offers the
# public names, and "rllib_ext" the package beside it.
LAYERS = (
    {"__main__"},
    {"cli"},
    {"figures"},
    {"sweeps"},
    {"results"},
    {"cbp_ray"},
    {"rllib_ext"},
    {"experiments"},
    {"methods", "problems"},
    {"compiled"},
    {"kernels", "algorithm"},
    {"initial_weights"},
    {"extras", "own_ray", "validation"},
    {"activations", "atomic_files", "errors", "presets", "randomness"},
)
HEIGHT = {name: -depth for depth, names in enumerate(LAYERS) for name in names}

FOREIGN = {
    "algorithm": {"ray", "numba"},
    "kernels": {"ray", "torch"},
    # Everything imports these, so what they import everything does.
    "errors": {"ray", "numba", "torch"},
    "activations": {"ray", "numba", "torch"},
    "presets": {"ray", "numba", "torch"},
    "initial_weights": {"ray", "numba", "torch"},
    "randomness": {"ray", "numba", "torch"},
}
MAY_PRINT = {"cli"}
PROGRAMS = {"rllib_ext.train": "cli"}
"""Modules that are programs, and the layer of which they are."""
MOST_LINES = 500


class Import(NamedTuple):
    module: str
    line: int
    lazy: bool


def layer(module: str) -> str | None:
    """`cbp_ray.kernels.lanes` -> `kernels`; None for other people's modules."""
    if module in PROGRAMS:
        return PROGRAMS[module]
    top, _, rest = module.partition(".")
    if top == "rllib_ext" or module == "cbp_ray":
        return top
    return rest.partition(".")[0] if top == "cbp_ray" else None


def imports(tree: ast.AST, package: str, lazy: bool = False) -> Iterator[Import]:
    """Every import in `tree`; lazy are those in a function or for the type checker only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            for alias in node.names:
                # `from cbp_ray import errors` names a module, `from cbp_ray import Adam` the package itself.
                below = base == "cbp_ray" and alias.name in HEIGHT
                yield Import(f"{base}.{alias.name}" if below else base, node.lineno, lazy)
        elif isinstance(node, ast.Call) and node.args:
            argument = node.args[0]
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in {"import_module", "__import__"} and isinstance(argument, ast.Constant):
                yield Import(str(argument.value), node.lineno, lazy)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        yield from imports(node, package, lazy or inside)


def import_violations(module: str, tree: ast.AST, package: str) -> Iterator[str]:
    own = layer(module)
    if own not in HEIGHT:
        yield f"{module}: {own} has no place in LAYERS"
        return
    for found in imports(tree, package):
        place = f"{module}:{found.line}"
        other = layer(found.module)
        if other is None:
            if found.module.partition(".")[0] in FOREIGN.get(own, set()):
                yield f"{place}: {own} may not import {found.module}"
        elif other not in HEIGHT:
            yield f"{place}: {found.module} has no place in LAYERS"
        elif other == "rllib_ext" and own != "rllib_ext":
            if own not in ("sweeps", "cli") or not found.lazy:
                yield f"{place}: only sweeps and cli may import rllib_ext, and inside a function"
        elif (own, other) == ("algorithm", "compiled") and found.lazy:
            pass  # The method uses its compiled parts where Numba is installed.
        elif other != own and HEIGHT[other] >= HEIGHT[own]:
            yield f"{place}: {own} may not import {other}"
        elif other == "cbp_ray" and own != "cbp_ray":
            yield f"{place}: import from the module that defines the name, not from cbp_ray"


def rule_violations(module: str, tree: ast.AST, source: str, may_print: bool) -> Iterator[str]:
    if module.rpartition(".")[2] == "utils":
        yield f"{module}: name a module for what it holds"
    if (lines := source.count("\n")) > MOST_LINES:
        yield f"{module}: {lines} lines, at most {MOST_LINES}"
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{module}:{node.lineno}: bare except"
        printing = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        if printing and not may_print:
            yield f"{module}:{node.lineno}: print outside the command line"


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    tree = ast.parse(source)
    package = module if is_package else module.rpartition(".")[0]
    may_print = layer(module) in MAY_PRINT
    return [*import_violations(module, tree, package), *rule_violations(module, tree, source, may_print)]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = sorted(path for package in ("cbp_ray", "rllib_ext") for path in (ROOT / package).rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_every_module_keeps_to_its_layer_and_the_house_rules(path: Path) -> None:
    assert violations(module_name(path), path.read_text(), path.name == "__init__.py") == []


@pytest.mark.parametrize("path", BENCHMARKS, ids=module_name)
def test_every_benchmark_keeps_to_the_house_rules(path: Path) -> None:
    source = path.read_text()
    assert list(rule_violations(module_name(path), ast.parse(source), source, may_print=True)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cbp_ray.algorithm.gnt", "import ray"),
        ("cbp_ray.algorithm.gnt", "from numba import njit"),
        ("cbp_ray.algorithm.gnt", "def f():\n    import ray.tune as tune"),
        ("cbp_ray.algorithm.gnt", "import importlib\nnumba = importlib.import_module('numba')"),
        ("cbp_ray.algorithm.gnt", "from cbp_ray.kernels import lanes"),
        ("cbp_ray.algorithm.gnt", "from ..experiments import online"),
        ("cbp_ray.algorithm.gnt", "from cbp_ray import Adam"),
        ("cbp_ray.kernels.lanes", "import torch.nn"),
        ("cbp_ray.kernels.lanes", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ray"),
        ("cbp_ray.experiments.online", "import cbp_ray.sweeps"),
        ("cbp_ray.experiments.online", "import rllib_ext"),
        ("cbp_ray.results.store", "from cbp_ray.sweeps import expand"),
        ("cbp_ray.results.store", "from cbp_ray.figures.registry import FIGURES"),
        ("cbp_ray.sweeps.tune", "from cbp_ray.figures.registry import FIGURES"),
        ("cbp_ray.sweeps.tune", "import rllib_ext"),
        ("cbp_ray.figures.bit_flipping", "from cbp_ray import cli"),
        ("cbp_ray.randomness", "from cbp_ray.errors import InputError"),
        ("cbp_ray.randomness", "import torch"),
        ("cbp_ray.errors", "import cbp_ray.algorithm"),
        ("cbp_ray.surprise.thing", "import math"),
        ("cbp_ray.problems.stream", "from cbp_ray.surprise import thing"),
        ("rllib_ext.learner", "from cbp_ray.sweeps import tune"),
        ("cbp_ray.problems.utils", "import math"),
        ("cbp_ray.problems.stream", "print('here')"),
        ("cbp_ray.problems.stream", "try:\n    pass\nexcept:\n    pass"),
        ("cbp_ray.problems.stream", "\n" * (MOST_LINES + 1)),
    ],
)
def test_the_checker_catches_a_violation(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cbp_ray.algorithm.gnt", "import torch\nfrom cbp_ray.errors import InputError\nfrom . import utility"),
        ("cbp_ray.kernels.lanes", "import numba\nfrom cbp_ray import randomness"),
        (
            "cbp_ray.experiments.online",
            "from cbp_ray.kernels import lanes\nfrom ..algorithm.gnt import GenerateAndTest",
        ),
        ("cbp_ray.sweeps.tune", "import ray\nfrom cbp_ray.results import store\ndef f():\n    import rllib_ext"),
        ("cbp_ray.figures.bit_flipping", "from cbp_ray.results import store\nfrom cbp_ray.sweeps import tune"),
        ("cbp_ray.cli", "from cbp_ray.figures.registry import FIGURES\nprint('here')"),
        ("rllib_ext.learner", "import ray\nfrom cbp_ray.algorithm.gnt import GenerateAndTest\nimport rllib_ext.env"),
    ],
)
def test_the_checker_allows_what_the_design_allows(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_the_public_names_are_the_same_for_people_and_for_type_checkers() -> None:
    tree = ast.parse((ROOT / "cbp_ray" / "__init__.py").read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    typed: dict[str | None, list[str]] = {}
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom)
        typed.setdefault(node.module, []).extend(alias.name for alias in node.names)
    assert {home: sorted(names) for home, names in typed.items()} == {h: sorted(n) for h, n in cbp_ray._HOMES.items()}
    assert all(getattr(cbp_ray, name) is not None for name in cbp_ray.__all__)
