"""Backprop: plain, with L2 regularisation, with OnlineNorm, and without hidden units (section 3 of the paper)."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from cbp_ray.methods.method import COLOURS, Method
from cbp_ray.validation import DecayRate, NotNegative

if TYPE_CHECKING:
    from torch import nn


class _Backprop(Method):
    """What all have in common: they are Backprop in every engine."""

    stacks = True

    def kernel(self) -> dict[str, Any]:
        return {}

    def rllib(self) -> dict[str, Any] | None:
        return {} if self.ppo_label else None


class BP(_Backprop):
    """Plain Backprop."""

    label = "BP"
    ppo_label = "PPO"
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["vermilion"], "marker": "s"}

    name: Literal["bp"] = "bp"
    """Name of the method in configs."""


class L2(_Backprop):
    """Backprop with L2 regularisation of all parameters."""

    label = "BP+L2"
    ppo_label = "PPO+L2"
    swept = "weight_decay"
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["orange"], "marker": "^"}

    name: Literal["l2"] = "l2"
    """Name of the method in configs."""
    weight_decay: NotNegative
    """λ: the gradient becomes g + λ w."""


class OnlineNormalization(_Backprop):
    """Backprop with OnlineNorm (Chiley et al. 2019) before every activation."""

    label = "BP+OnlineNorm"
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["green"], "marker": "D"}

    name: Literal["online_norm"] = "online_norm"
    """Name of the method in configs."""
    alpha_forward: DecayRate = 0.999
    """Decay of the streaming mean and variance."""
    alpha_backward: DecayRate = 0.99
    """Decay of the control process on the gradients."""
    affine: bool = True
    """Whether a learned scale and bias follow."""
    weight_decay: NotNegative = 0.0
    """λ: the gradient becomes g + λ w."""

    def norm(self, units: int) -> "nn.Module":
        from cbp_ray.algorithm import OnlineNorm

        return OnlineNorm(units, self.alpha_forward, self.alpha_backward, affine=self.affine)

    def kernel(self) -> dict[str, Any]:
        alphas = {"alpha_forward": self.alpha_forward, "alpha_backward": self.alpha_backward}
        return {"normalized": True, "affine": self.affine, **alphas}

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what is as it always was: results from before there was a choice keep their names."""
        settings: dict[str, Any] = handler(self)
        return {name: value for name, value in settings.items() if name != "affine" or not value}


class FullReset(_Backprop):
    """A new network at every change of the problem: an oracle, which has no plasticity to lose and nothing to remember."""

    label = "full reset (oracle)"
    restarts = True
    stacks = False
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["grey"], "linestyle": (0, (1, 2)), "marker": ""}

    name: Literal["full_reset"] = "full_reset"
    """Name of the method in configs."""
    weight_decay: NotNegative = 0.0
    """λ: the gradient becomes g + λ w."""


class Linear(_Backprop):
    """The linear tracker: a network without hidden units, which has no plasticity to lose."""

    label = "linear"
    hidden = False
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["grey"], "linestyle": (0, (4, 2)), "marker": ""}

    name: Literal["linear"] = "linear"
    """Name of the method in configs."""

    def kernel(self) -> dict[str, Any]:
        return {"hidden": False, "activation": "linear"}
