"""Which unit feeds which inside an RLModule.

RLModules take and return dictionaries, which `torch.fx` can't follow; but the networks inside are plain. A *branch* is one
trunk (an encoder) and the heads that read its output. Each branch is traced by itself, so whatever
`cbp_ray.algorithm.network` understands works here: norm layers, other activations, heads with hidden layers of their own.
"""

import logging
from typing import Any, Protocol, runtime_checkable

from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ENCODER_OUT
from ray.rllib.core.rl_module.rl_module import RLModule
from torch import Tensor, nn

from cbp_ray.algorithm.network import HiddenLayer, check_layers, find_units
from cbp_ray.errors import InputError

LOGGER = logging.getLogger(__name__)

NETWORKS = (
    # Of one kind of RLModule: for every branch, the path to the trunk and those to its heads. A branch whose trunk the module
    # has not (a shared encoder instead of two, one Q-network instead of two) does not count, nor do heads that it has not.
    (("encoder.encoder", ("pi", "vf")), ("encoder.actor_encoder", ("pi",)), ("encoder.critic_encoder", ("vf",))),
    (("pi_encoder", ("pi",)), ("qf_encoder", ("qf",)), ("qf_twin_encoder", ("qf_twin",))),
    (("encoder", ("af", "vf")),),
)
"""The RLModules of PPO, APPO and IMPALA, of SAC, and of DQN."""


@runtime_checkable
class NamesItsLayers(Protocol):
    """An RLModule of your own: it says itself which hidden layers generate-and-test may treat."""

    def continual_backprop_layers(self) -> list[HiddenLayer]: ...


class _Branch(nn.Module):
    """A trunk that reads one tensor, and its heads."""

    def __init__(self, trunk: nn.Module, heads: list[nn.Module]) -> None:
        super().__init__()
        self.trunk, self.heads = trunk, nn.ModuleList(heads)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.trunk(x)
        return [head(x) for head in self.heads]


class _StreamsBranch(_Branch):
    """A trunk that encodes observation and action by themselves and joins them (SAC's Q-networks), and its heads."""

    def forward(self, observation: Tensor, action: Tensor) -> list[Tensor]:  # type: ignore[override]
        x = self.trunk({Columns.OBS: observation, Columns.ACTIONS: action})[ENCODER_OUT]
        return [head(x) for head in self.heads]


def hidden_layers(module: RLModule) -> list[HiddenLayer]:
    """The hidden layers of an RLModule, by their names in `module.named_modules()`; an `InputError` if it can't be treated."""
    if isinstance(module, NamesItsLayers):
        model: Any = module
        return check_layers(model, module.continual_backprop_layers())
    names = {id(m): name for name, m in module.named_modules()}
    layers: list[HiddenLayer] = []
    untreated: dict[str, str] = {}
    for branch in _branches(module):
        here = {name: names.get(id(inner), name) for name, inner in branch.named_modules()}
        found = find_units(branch, here.__getitem__)
        layers += found.layers
        untreated |= found.untreated
    if untreated:
        LOGGER.warning(f"generate-and-test leaves parts alone: {'; '.join(f'{n!r}: {r}' for n, r in untreated.items())}")
    if not layers and untreated:
        raise InputError("; ".join(untreated.values()))
    return check_layers(module, layers)


def treatable_layers(module_id: str, module: RLModule) -> list[HiddenLayer]:
    """`hidden_layers`, or an error that quotes the calls to look at."""
    try:
        return hidden_layers(module)
    except InputError as error:
        raise InputError(
            f".continual_backprop(...) can't treat module {module_id!r}: {error}; change it with .rl_module(...), or remove "
            "the call"
        ) from error


def _branches(module: RLModule) -> list[_Branch]:
    for networks in NETWORKS:
        found = [(_part(module, trunk), [_part(module, head) for head in heads]) for trunk, heads in networks]
        present = [(trunk, heads) for trunk, heads in found if trunk is not None]
        if present and all(hasattr(trunk, "net") or hasattr(trunk, "base_encoders") for trunk, _ in present):
            return [_branch(trunk, [head.net for head in heads if head is not None]) for trunk, heads in present]
    raise InputError(
        f"{type(module).__name__}: its networks are of no kind that is known here (an encoder may be recurrent); give it a "
        "method continual_backprop_layers() that returns a list of cbp_ray.algorithm.HiddenLayer"
    )


def _branch(trunk: Any, heads: list[nn.Module]) -> _Branch:
    return _Branch(trunk.net, heads) if hasattr(trunk, "net") else _StreamsBranch(trunk, heads)


def _part(module: RLModule, path: str) -> Any:
    part: Any = module
    for name in path.split("."):
        part = getattr(part, name, None)
    return part
