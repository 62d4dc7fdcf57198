"""What the product uses of other packages' private parts: each name is listed here, and fails by name when it is gone.

The list can't rot: syntax trees of the product are searched for such names, and must have exactly those that are listed.
"""

import ast
import importlib
import inspect
import pydoc
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOREIGN = {"ray", "gymnasium", "torch", "numba", "llvmlite"}
INTERNAL = ("numba.core",)
"""Modules whose names look public, but whose package does not document them."""
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
"""Names that are documented in spite of their looks."""

RUNNER = "ray.rllib.env.single_agent_env_runner:SingleAgentEnvRunner"
LEARNER = "ray.rllib.core.learner.torch.torch_learner:TorchLearner"
PPO_MODULE = "ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module:DefaultPPOTorchRLModule"
FOREACH = "add add_ addcdiv_ addcmul_ div_ lerp_ maximum_ mul_ neg sqrt"

USED = {
    "cbp_ray/algorithm/adam.py": {"torch": " ".join(f"_foreach_{name}" for name in FOREACH.split())},
    "cbp_ray/algorithm/network.py": {"torch._dynamo.eval_frame:OptimizedModule": "_orig_mod"},
    "cbp_ray/algorithm/trace.py": {"torch": "_assert"},
    "cbp_ray/algorithm/watched_site.py": {"torch._compile": "_disable_dynamo"},
    "cbp_ray/kernels/compilation.py": {
        "numba.core.caching": "FunctionCache",
        "numba.core.caching:FunctionCache": "_index_key",
        "numba.core.dispatcher:Dispatcher": "_cache",
        "numba.core.options:DefaultOptions": "_nrt",
    },
    "cbp_ray/kernels/lanes.py": {
        "numba.core": "cgutils types",
        "numba.core.typing.templates": "AbstractTemplate infer_global signature",
    },
    "cbp_ray/kernels/noise.py": {"numba.core": "cgutils types"},
    "cbp_ray/kernels/vectors.py": {"numba.core": "cgutils types"},
    "cbp_ray/own_ray.py": {"ray._private.ray_constants": "ENABLE_RAY_CLUSTER"},
    "cbp_ray/sweeps/cluster.py": {
        "ray._raylet": "Config",
        "ray._raylet.Config": "initialize",
        "ray._private.worker": "_worker_logs_enabled _global_node",
        "ray._private.grpc_utils": "init_grpc_channel",
        "ray._private.services": "canonicalize_bootstrap_address",
    },
    "cbp_ray/sweeps/loggers.py": {
        "ray.air.integrations.wandb.WandbLoggerCallback": "_logger_actor_cls",
        "ray.air.integrations.wandb:_WandbLoggingActor": "_wandb",
    },
    "cbp_ray/sweeps/worker_deaths.py": {
        "ray.tune.execution.tune_controller:TuneController": "_resetting_trials _set_trial_status _trial_task_failure "
        "_unstage_trial_with_resources",
    },
    "rllib_ext/config.py": {
        "ray.rllib.algorithms.ppo.ppo:PPOConfig": "_model_config_auto_includes _rl_module_spec",
        "ray.tune.registry": "_global_registry",
    },
    "rllib_ext/ant/algorithm_mixin.py": {"ray.rllib.algorithms.algorithm:Algorithm": "_check_component"},
    "rllib_ext/ant/open_env_runner.py": {
        RUNNER: "_cached_to_module _callbacks _device _done_episodes_for_metrics _env_to_module _increase_sampled_metrics "
        "_log_env_steps _make_on_episode_callback _metrics_num_env_steps_sampled _metrics_num_try_env_step _module_to_env "
        "_needs_initial_reset _new_episode _ongoing_episodes _ongoing_episodes_for_metrics _reset_envs_and_episodes _sample "
        "_shared_data _try_env_reset _try_env_step",
        "ray.rllib.env.single_agent_episode:SingleAgentEpisode": "_last_step_time _start_time",
        "gymnasium.wrappers:TimeLimit": "_elapsed_steps _max_episode_steps",
        "gymnasium.vector:SyncVectorEnv": "_autoreset_envs",
    },
    "rllib_ext/learners/open_learner.py": {
        LEARNER: "_check_component _compute_off_policyness _create_iterator_if_necessary _get_optimizer_state _grad_scalers "
        "_learner_connector _learner_index _log_metrics _log_steps_trained_metrics _lr_scheduler_classes "
        "_make_batch_if_necessary _named_optimizers _optimizer_name_to_module _params _set_optimizer_state _update "
        "_weights_seq_no",
        "ray.rllib.utils.minibatch_utils:MiniBatchCyclicIterator": "_batch",
        "torch": "_foreach_norm",
    },
    "rllib_ext/learners/rl_module.py": {PPO_MODULE: "_forward_train _forward_exploration _forward_inference"},
}
"""By file of the product and owner (a module, or a class of one): the names used, of which all but those of modules are
attributes of the class or of its instances."""

SOURCES = sorted(str(path.relative_to(ROOT)) for package in ("cbp_ray", "rllib_ext") for path in (ROOT / package).rglob("*.py"))
LISTED = [(file, owner, name) for file, owners in USED.items() for owner, names in owners.items() for name in names.split()]


@pytest.mark.parametrize(("file", "owner", "name"), LISTED)
def test_what_we_use_is_still_there(file: str, owner: str, name: str) -> None:
    found: Any = pydoc.locate(owner.replace(":", "."))
    known = name in private_names(found) if ":" in owner else hasattr(found, name) or pydoc.locate(f"{owner}.{name}")
    assert known, f"{owner} has no {name} any more, which {file} uses"


@pytest.mark.parametrize("file", SOURCES)
def test_every_private_name_is_listed(file: str) -> None:
    listed = {
        name if ":" in owner else f"{owner}.{name}" for owner, names in USED.get(file, {}).items() for name in names.split()
    }
    found = set(private_uses(file))
    assert found - listed == set(), "not in the list: avoid them, or put them there"
    assert listed - found == set(), "in the list, but not used"


def test_every_listed_file_exists() -> None:
    assert set(USED) <= set(SOURCES)


def private(name: str) -> bool:
    return re.fullmatch(r"_[a-z]\w*", name) is not None


@cache
def private_names(owner: type[Any]) -> frozenset[str]:
    """Names of a class and of its instances: what its parents define, and what their methods assign to themselves."""
    found = {name for name in dir(owner) if private(name)}
    for parent in owner.__mro__:
        if parent.__module__.partition(".")[0] in FOREIGN:
            try:
                source = textwrap.dedent(inspect.getsource(parent))
            except (OSError, TypeError):  # compiled
                continue
            found |= {name for node in ast.walk(ast.parse(source)) for name in names_of_self(node) if is_given(node)}
    return frozenset(found)


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


@cache
def own_names() -> frozenset[str]:
    """Private names that the product itself gives to something."""
    found: set[str] = set()
    for node in (node for file in SOURCES for node in ast.walk(tree(file))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and is_given(node):
            found.add(node.id)
        elif is_given(node):
            found.update(names_of_self(node))
    return frozenset(found)


def private_uses(file: str) -> Iterator[str]:
    """Other packages' private names in a file: with their module where it is known, otherwise alone."""
    foreign: dict[str, str] = {}
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                path = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
                if path.partition(".")[0] not in FOREIGN:
                    continue
                if any(map(private, path.split("."))) or path.startswith(INTERNAL):
                    yield path
                name = alias.asname or alias.name
                # `import a.b` gives the name `a`.
                foreign[name.partition(".")[0]] = path if "." not in name else name.partition(".")[0]
    for node, inherited in classes(file):
        yield from (name for inner in ast.walk(node) for name in names_of_self(inner) if name in inherited)
    parts: set[ast.AST] = set()
    for node in ast.walk(tree(file)):
        match node:
            case ast.Attribute() if (path := dotted(node, foreign)) is not None:
                # Of `ray._private.worker._global_node`, the whole is the name.
                if node not in parts and any(map(private, path.split("."))):
                    yield path
                parts.add(node.value)
            case (
                ast.Attribute(attr=name)
                | ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_])
                | ast.Dict(keys=[ast.Constant(value=str(name))])
            ) if private(name) and name not in own_names() | NAMED_TUPLE:
                yield name


def classes(file: str) -> Iterator[tuple[ast.ClassDef, frozenset[str]]]:
    """The classes of a file that have parents in other packages, with the private names of these."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for node in tree(file).body:
        if isinstance(node, ast.ClassDef):
            parents = getattr(importlib.import_module(module), node.name).__mro__
            theirs = [private_names(parent) for parent in parents if parent.__module__.partition(".")[0] in FOREIGN]
            if theirs:
                yield node, frozenset().union(*theirs)


def about_self(node: ast.Attribute) -> bool:
    value = node.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def is_given(node: ast.AST) -> bool:
    """Whether a name gets its meaning here, and is not only asked for."""
    return not isinstance(getattr(node, "ctx", None), ast.Load)


def names_of_self(node: ast.AST) -> Iterator[str]:
    """Private names that a class gives to its own attributes or asks itself for."""
    match node:
        case ast.FunctionDef() if private(node.name):
            yield node.name
        case ast.Attribute() if private(node.attr) and about_self(node):
            yield node.attr
        case ast.AnnAssign(target=ast.Name(id=name)) if private(name):
            yield name


def dotted(node: ast.expr, foreign: dict[str, str]) -> str | None:
    """`ray._private.worker` for an attribute of something imported; None for other attributes."""
    if isinstance(node, ast.Name):
        return foreign.get(node.id)
    if isinstance(node, ast.Attribute) and (path := dotted(node.value, foreign)) is not None:
        return f"{path}.{node.attr}"
    return None
