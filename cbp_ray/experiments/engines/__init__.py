"""The engines: which one runs which problem, and what each refuses. One table; nothing heavy is imported to read it."""

import importlib
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import AdamConfig, OnlineConfig
from cbp_ray.experiments.engines.engine import Engine
from cbp_ray.extras import need

EngineName = Literal["kernel", "torch", "rllib"]
NAMES: tuple[str, ...] = get_args(EngineName)

LARGEST_DECAY = 0.9
"""Largest αλ in the MLP kernel, which divides by a product of 1 - αλ."""
PPO_ACTIVATIONS = ("tanh", "relu", "elu", "swish")


def _kernels_lack(config: OnlineConfig) -> str | None:
    if config.algorithm.kernel() is not None:
        return None
    return f"algorithm.name: must be a method that the kernels have, got {config.algorithm.name!r}; use engine: torch"


def _lanes_refuse(config: OnlineConfig) -> str | None:
    if len(config.hidden) > 1:
        return f"network.hidden: the kernel takes one hidden layer, got {list(config.hidden)}; use engine: torch"
    if config.network.input_norm:
        return (
            f"network.input_norm: must be 0 for the kernel of bit_flipping, got {config.network.input_norm}; use engine: torch"
        )
    return _kernels_lack(config)


def _mlp_refuses(config: OnlineConfig) -> str | None:
    decay = config.optimizer.step_size * config.algorithm.decay
    if not config.optimizer.kernel().get("adam") and decay > LARGEST_DECAY:
        return (
            f"algorithm.weight_decay: times optimizer.step_size, must be at most {LARGEST_DECAY} for the kernel, "
            f"got {decay}; use less, or engine: torch"
        )
    return _kernels_lack(config)


def _rllib_refuses(config: OnlineConfig) -> str | None:
    activation, optimizer = config.network.activation, config.optimizer
    if config.algorithm.rllib() is None:
        return f"algorithm.name: must be a method that PPO has, got {config.algorithm.name!r}; use cbp, say"
    if not isinstance(optimizer, AdamConfig) or optimizer.epsilon != AdamConfig(step_size=1).epsilon:
        return f"optimizer: must be adam with its default epsilon for slippery_ant, got {optimizer!r}; change it"
    if activation not in PPO_ACTIVATIONS:
        return f"network.activation: must be one of {', '.join(PPO_ACTIVATIONS)} for slippery_ant, got {activation!r}; use one"
    if config.network.input_norm or config.network.initial_weights != "kaiming":
        return "network: must not have input_norm or initial_weights for slippery_ant, got one; remove it"
    if config.dtype != "float32":
        return f"dtype: must be float32 for slippery_ant, got {config.dtype!r}; change it"
    return None


def _one_example(config: OnlineConfig) -> OnlineConfig:
    return config.model_copy(update={"examples": 1, "bin_size": 1})


def _one_example_of_one_unit(config: OnlineConfig) -> OnlineConfig:
    # The kernel is the same for any network, and large ones take long to make.
    return _one_example(config).model_copy(update={"network": config.network.model_copy(update={"hidden": (1,)})})


class Row(NamedTuple):
    """One engine for one problem."""

    path: str
    """`module:name` of what makes it from config, seeds and, if it takes one, device."""
    refuses: Callable[[OnlineConfig], str | None] = lambda config: None
    """One line about a config that it can't run; None if it can. The torch engine, the reference, runs every method."""
    takes_device: bool = False
    """Whether it computes on other devices than the CPU."""
    needs: tuple[str, ...] = ()
    """The extra of the package that it needs, and modules that show whether it is installed."""
    smallest: Callable[[OnlineConfig], OnlineConfig] | None = None
    """The shortest config whose run compiles all that a config needs; None for an engine that compiles nothing."""


_HERE = "cbp_ray.experiments.engines"
ENGINES: dict[tuple[str, str], Row] = {
    ("kernel", "bit_flipping"): Row(f"{_HERE}.lane_bit_flipping:LaneEngine", _lanes_refuse, smallest=_one_example),
    ("kernel", "permuted_mnist"): Row(f"{_HERE}.mlp_permuted_mnist:MlpEngine", _mlp_refuses, smallest=_one_example_of_one_unit),
    ("torch", "bit_flipping"): Row(f"{_HERE}.torch_bit_flipping:make_engine", takes_device=True),
    ("torch", "permuted_mnist"): Row(f"{_HERE}.torch_permuted_mnist:make_engine", takes_device=True),
    ("rllib", "slippery_ant"): Row(
        "rllib_ext.engine:RllibEngine", _rllib_refuses, needs=("rllib", "ray", "gymnasium", "pybullet")
    ),
}


def row_of(config: OnlineConfig, engine: str) -> Row:
    """The engine's row for the config's problem.

    Raises:
      InputError: if there is no such engine, it is not installed, it does not have the problem, or it refuses the config.
    """
    if not isinstance(engine, str) or engine not in NAMES:
        raise InputError(f"engine: must be one of {', '.join(NAMES)}, got {engine!r}; use kernel")
    row = ENGINES.get((engine, config.problem.name))
    if row is None:
        have = [name for name, problem in ENGINES if problem == config.problem.name]
        raise InputError(f"engine: must be {' or '.join(have)} for {config.problem.name}, got {engine!r}; change it")
    if row.needs:
        need(*row.needs)
    if refusal := row.refuses(config):
        raise InputError(refusal)
    return row


def make_engine(config: OnlineConfig, engine: str, seeds: Sequence[int], device: str = "cpu") -> Engine:
    """The engine with one run per seed.

    Raises:
      InputError: as `row_of`, or for a device that the engine does not take.
    """
    row = row_of(config, engine)
    if not isinstance(device, str):
        raise InputError(f"device: must be a name such as 'cpu' or 'cuda', got {device!r}; use 'cpu'")
    if device != "cpu" and not row.takes_device:
        raise InputError(f"device: must be 'cpu' for engine {engine!r}, got {device!r}; use engine 'torch' on another")
    module, _, name = row.path.partition(":")
    # Imported on use: a kernel worker need not load torch, nor a torch worker Numba.
    make = getattr(importlib.import_module(module), name)
    made: Engine = make(config, seeds, device) if row.takes_device else make(config, seeds)
    return made
