"""What a method is: everything that engines, sweeps and figures ask of a way to learn."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from cbp_ray.validation import Model

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from cbp_ray.algorithm.network import HiddenLayer

    Optimizers = Optimizer | Sequence[Optimizer]
    Layers = Sequence[HiddenLayer] | None

COLOURS = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "orange": "#E69F00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "black": "#000000",
    "grey": "#7A7A7A",
}
"""Colours that colour-blind people can tell apart (Okabe and Ito)."""


class AfterStep(Protocol):
    """What a method does after every optimizer step; `cbp_ray.GenerateAndTest` is one.

    It may also have `replaced` and `nonfinite`: counts by layer, since the beginning.
    """

    def step(self) -> Any:
        """Acts once, after the optimizer."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs besides the states of model and optimizer."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state_dict` was taken."""
        ...


class Method(Model):
    """A way to learn, with its settings. As it stands it is Backprop; a subclass overrides what it does differently.

    Engines never ask which method they have. The torch engine runs any; the others run only those that say how.

    Example:
      >>> from typing import Literal
      >>> class Shrink(Method):
      ...     label = "shrink"
      ...     name: Literal["shrink"] = "shrink"
      ...     factor: float
      >>> Shrink(factor=0.5).kernel() is None
      True
    """

    label: ClassVar[str]
    """What the method is called in print."""
    ppo_label: ClassVar[str | None] = None
    """What it is called in print when PPO learns with it."""
    swept: ClassVar[str | None] = None
    """The setting that sensitivity figures draw along the horizontal axis; None if there is none."""
    hidden: ClassVar[bool] = True
    """Whether the learning network has hidden units."""
    restarts: ClassVar[bool] = False
    """Whether an engine gives it a new network at every change of the problem, which it can't know: it is an oracle."""
    stacks: ClassVar[bool] = False
    """Whether `after_step` also takes several networks in a stack (`cbp_ray.algorithm.stacked_linear`) and a seed for each."""
    look: ClassVar[dict[str, Any]] = {"color": COLOURS["black"], "marker": "x"}
    """Matplotlib settings of its curves."""

    name: str
    """Name of the method in configs."""

    @property
    def decay(self) -> float:
        """λ of weight decay, which the optimizer applies: the gradient becomes g + λ w."""
        return float(getattr(self, "weight_decay", 0.0))

    @property
    def told(self) -> dict[str, Any]:
        """The settings that tell this method from others of its kind, for tables; weight decay only if that is swept."""
        own = self.model_dump(exclude={"name"})
        return {name: value for name, value in own.items() if name in TOLD and (name != "weight_decay" or name == self.swept)}

    def norm(self, units: int) -> "nn.Module | None":
        """A module between a layer of so many units and its activation; None for none."""
        return None

    def after_step(
        self, model: "nn.Module", optimizer: "Optimizers", seed: int | Sequence[int], layers: "Layers" = None
    ) -> AfterStep | None:
        """What acts on a torch network after every optimizer step; None if nothing does.

        Args:
          model: the network, at its initial weights.
          optimizer: the optimizer, or several, that hold its parameters.
          seed: of whatever is random; several for networks in a stack.
          layers: the hidden layers of a network that can't be traced, as RLlib's are; by default they are looked for.
        """
        return None

    def kernel(self) -> dict[str, Any] | None:
        """What the compiled kernels need to know: fields of their `Choices` and `Numbers` that differ from Backprop's.

        None says that the kernels do not have this method, and they refuse it.
        """
        return None

    def never_acted(self, replacements: float, updates: float, units: int) -> str | None:
        """One line if runs have ended in which the method should have done something and did not; None otherwise.

        Args:
          replacements: units replaced in all runs together.
          updates: steps of a run after which the method could have acted.
          units: hidden units of its smallest layer.
        """
        return None

    def rllib(self) -> dict[str, Any] | None:
        """Settings for `.plasticity(name, ...)` of RLlib's configs, empty for what is plain there; None if RLlib lacks it."""
        return None


TOLD = ("replacement_rate", "maturity_threshold", "weight_decay", "alpha_forward", "alpha_backward", "utility")
"""Columns of the tables of settings."""
