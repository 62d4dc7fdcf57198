"""What the product may not do anywhere, looked for in its syntax trees: read pickles, load code, run shells, listen.

Where a rule has an exception, it stands here with its reason, and `docs/security.md` says the same.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cbp_ray.sweeps import sweep_file

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("cbp_ray", "rllib_ext", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "_pickle"}
NEEDED = {
    "load": {"torch": "weights_only", "np": "allow_pickle", "numpy": "allow_pickle"},
    "read_array": {"format": "allow_pickle"},
}
"""Functions of a module that read pickles unless an argument says otherwise."""
SAFE = {"weights_only": True, "allow_pickle": False}
FORBIDDEN = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "system",
    "popen",
    "unsafe_load",
    "full_load",
    "unsafe_load_all",
    "load_all",
}
RESTORES = {"from_checkpoint", "restore_from_path", "load_checkpoint", "load_from_path", "restore", "load_state_from_file"}
"""Ray's functions that read its own checkpoints, which are pickles."""
ALLOWED = {
    ("rllib_ext/train.py", "restore"): "Tuner.restore, behind --resume: of one's own runs, says --help",
    ("rllib_ext/ant/algorithm_mixin.py", "restore"): "our env runner's, of plain data in memory",
    ("rllib_ext/film.py", "load_checkpoint"): "our own, of arrays without pickle",
}


def calls(tree: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    """Every call with what stands before the last dot, and the name behind it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                owner = node.func.value
                yield owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "…"), node.func.attr, node
            elif isinstance(node.func, ast.Name):
                yield "", node.func.id, node


def violations(source: str, place: str) -> Iterator[str]:
    """What a module does that it may not."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        for name in names:
            if PICKLES & set(name.split(".")):
                yield f"{place}:{getattr(node, 'lineno', 0)}: imports {name}"
    for owner, name, call in calls(tree):
        where = f"{place}:{call.lineno}: {owner}.{name}"
        given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
        argument = NEEDED.get(name, {}).get(owner)
        if argument is not None and given.get(argument) is not SAFE[argument]:
            yield f"{where} without {argument}={SAFE[argument]}"
        if name in FORBIDDEN and owner in ("", "os", "yaml", "builtins"):
            yield where
        if name == "load" and owner == "yaml" and [getattr(argument, "id", "") for argument in call.args[1:]] != ["_Loader"]:
            yield f"{where} with another loader"
        if given.get("shell") is True:
            yield f"{where} in a shell"
        if name in RESTORES and (place, name) not in ALLOWED:
            yield f"{where} reads what may be a pickle"
        if owner != "self" and name in ("bind", "listen", "create_server", "start_server", "HTTPServer", "TCPServer"):
            yield f"{where} listens"


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_reads_pickles_runs_text_or_listens(file: Path) -> None:
    assert list(violations(file.read_text(encoding="utf-8"), str(file.relative_to(ROOT)))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from ray import cloudpickle",
        "import ray.cloudpickle as p",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.lib.format.read_array(f)",
        "yaml.load(text, yaml.Loader)",
        "yaml.unsafe_load(text)",
        "eval(text)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
        "Algorithm.from_checkpoint(path)",
        "socket.bind(address)",
    ],
)
def test_a_violation_is_found(source: str) -> None:
    assert list(violations(source, "somewhere.py"))


def test_every_exception_is_still_one() -> None:
    for place, name in ALLOWED:
        assert name in {called for _, called, _ in calls(ast.parse((ROOT / place).read_text(encoding="utf-8")))}


def test_yaml_makes_nothing_but_plain_data() -> None:
    constructors = set(sweep_file._Loader.yaml_constructors)
    assert constructors == set(yaml.SafeLoader.yaml_constructors)
    assert set(sweep_file._Loader.yaml_multi_constructors) == set(yaml.SafeLoader.yaml_multi_constructors)
    with pytest.raises(Exception, match="could not determine a constructor"):
        yaml.load("!!python/object/apply:os.getcwd []", sweep_file._Loader)
