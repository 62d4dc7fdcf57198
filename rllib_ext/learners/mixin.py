"""Generate-and-test inside RLlib's learners: after the optimizer's step of every mini-batch (Algorithm 3 of the paper)."""

import logging
from inspect import signature
from typing import Any

import torch
from ray.rllib.core import COMPONENT_OPTIMIZER
from ray.rllib.utils.metrics import ALL_MODULES
from torch import Tensor

from cbp_ray.algorithm.adam import Adam
from cbp_ray.algorithm.generate_and_test import GenerateAndTest
from cbp_ray.algorithm.network import HiddenLayer
from cbp_ray.algorithm.step_report import StepReport
from cbp_ray.errors import InputError
from rllib_ext.learners.diagnostics import Diagnostics
from rllib_ext.learners.open_learner import OpenLearner
from rllib_ext.learners.targets import Targets
from rllib_ext.learners.topology import treatable_layers
from rllib_ext.plain_state import random_state, set_random_state, to_arrays, to_tensors

LOGGER = logging.getLogger(__name__)

COMPONENT_GNT = "generate_and_test"
"""Name of the checkpoint's part that holds utilities, ages and running averages."""
RESULTS = "continual_backprop"
"""Under a module's learner results: what generate-and-test did, and how able to learn the networks are."""
GRADIENT_STEPS = "num_gradient_steps"
"""Name of a result, and of a part of the state: gradient steps of an iteration, or so far."""
MEASURE_EVERY = 100
"""Gradient steps between two diagnoses of the networks, where an update is a single mini-batch (DQN, SAC, IMPALA, APPO)."""
UNLIKE_OURS = ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay")
"""Settings of `torch.optim.Adam` that `cbp_ray.Adam` does not have."""


class ContinualBackpropLearnerMixin(OpenLearner):
    """Puts generate-and-test into any torch learner of RLlib: `class MyLearner(ContinualBackpropLearnerMixin, ThatLearner)`.

    The settings come from `config.continual_backprop(...)` or `config.plasticity(...)`, per module if the config has overrides
    per module; without them the module is trained as the learner underneath does. Changes to that learner:

    - After the optimizer's step, in `apply_gradients`, one step of generate-and-test on every module in the mini-batch.
      (`after_gradient_based_update` would be once per iteration.)
    - `torch.optim.Adam` becomes `cbp_ray.Adam`, equal to it until the first replacement (to rounding in float32 on a CPU, where
      it is compiled, otherwise bit for bit) and with a time step per weight from then on; `config.weight_decay` is its L2
      coefficient. Other optimizers stay.
    - Gradients are looked through for numbers that are not finite all at once; only if there are any, RLlib does what it does.
    - With several learners, averages over the mini-batch are averages over the mini-batches of all replicas. Gradients,
      seeds and states being equal, so are the replacements.
    - The state has utilities, ages, averages, time steps and random state besides weights and moments.
    - Target networks follow as `rllib_ext.learners.targets` says.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._gnts: dict[str, GenerateAndTest] = {}
        self._rules: dict[str, Any] = {}
        self._diagnostics: dict[str, Diagnostics] = {}
        self._targets: dict[str, Targets] = {}
        self._reports: dict[str, StepReport] = {}
        self._replaced: dict[str, int] = {}
        self._in_mini_batch: list[str] = []
        self._gradient_steps = 0
        self._gradient_steps_reported = 0
        self._measured = -MEASURE_EVERY

    def build(self) -> None:
        super().build()
        for module_id in self.module.keys():  # noqa: SIM118  # not a dict
            self._watch(module_id)

    def _watch(self, module_id: str) -> None:
        """Looks for the hidden layers of a module and, if the config says so, lets generate-and-test treat them."""
        if not self.rl_module_is_compatible(self.module[module_id]):
            return
        config = self.config.get_config_for_module(module_id)
        settings = getattr(config, "continual_backprop_settings", None)
        method = config.plasticity_method() if hasattr(config, "plasticity_method") else None
        module, layers = self.module[module_id].unwrapped(), list[HiddenLayer]()
        try:
            layers = treatable_layers(module_id, module)
            self._diagnostics[module_id] = Diagnostics(module, layers)
        except InputError:
            if settings is not None or (method is not None and config.acts_on_units()):
                raise
            # No units to treat, and nothing to report of them.
        given: dict[str, Any] | None = config.plasticity_settings if method is not None else settings
        if given is None:
            return
        seed = given["seed"] if given["seed"] is not None else self.config.seed or 0
        optimizers = [optimizer for _, optimizer in self.get_optimizers_for_module(module_id)]
        call = ".continual_backprop(...)" if method is None else f".plasticity({method.name!r})"
        try:
            if method is None:
                made: Any = GenerateAndTest(module, optimizers, layers=layers, **given | {"seed": seed})
            else:
                # Methods of somebody's own need not know of layers.
                named = {"layers": layers} if layers and "layers" in signature(method.after_step).parameters else {}
                made = method.after_step(module, optimizers, seed, **named)
        except InputError as error:
            raise InputError(f"{call}, module {module_id!r}: {error}") from error
        if made is None:
            return
        self._replaced[module_id] = 0
        if not isinstance(made, GenerateAndTest):
            self._rules[module_id] = made
            return
        if self.distributed:
            made.average_over_replicas = _average_over_replicas
            if hasattr(made, "replicas"):
                made.replicas = max(1, self.config.num_learners)
        self._gnts[module_id] = made
        if getattr(config, "tau", 1.0) < 1.0:
            self._targets[module_id] = Targets(module, layers)

    def register_optimizer(self, *, optimizer: torch.optim.Optimizer, **kwargs: Any) -> None:
        weight_decay = getattr(self.config.get_config_for_module(kwargs["module_id"]), "weight_decay", 0.0)
        if weight_decay:
            # SAC's temperature is no weight of a network.
            weights = set(self.module[kwargs["module_id"]].parameters())
            weight_decay *= all(param in weights for param in kwargs["params"])
        betas = getattr(self.config.get_config_for_module(kwargs["module_id"]), "betas", None)
        super().register_optimizer(optimizer=with_time_steps(optimizer, weight_decay, betas), **kwargs)

    def add_module(self, *, module_id: str, **kwargs: Any) -> Any:
        spec = super().add_module(module_id=module_id, **kwargs)
        self._watch(module_id)
        return spec

    def remove_module(self, module_id: str, **kwargs: Any) -> Any:
        for watchers in (self._gnts, self._rules, self._diagnostics):
            if module_id in watchers:
                getattr(watchers.pop(module_id), "close", lambda: None)()
        for kept in (self._targets, self._reports, self._replaced):
            kept.pop(module_id, None)
        return super().remove_module(module_id, **kwargs)

    def before_mini_batch(self, module_ids: list[str]) -> None:
        self._in_mini_batch = module_ids
        for gnt in self._gnts.values():
            gnt.forget_forwards()

    def apply_gradients(self, gradients_dict: dict[Any, Tensor]) -> None:
        self.step_optimizers(gradients_dict)
        self._gradient_steps += bool(gradients_dict)
        for module_id in self._in_mini_batch:
            if module_id in self._rules:
                report = self._rules[module_id].step()
                self._replaced[module_id] += sum(getattr(report, "changed", {}).values())
            gnt = self._gnts.get(module_id)
            if gnt is not None:
                report = self._reports[module_id] = gnt.step()
                if report.replaced:
                    self._replaced[module_id] += sum(map(len, report.replaced.values()))
                    if module_id in self._targets:
                        self._targets[module_id].follow(report.replaced)

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        steps = self._gradient_steps - self._gradient_steps_reported
        self._gradient_steps_reported = self._gradient_steps
        if not steps:
            raise RuntimeError("an iteration made no gradient step: no loss had a gradient; are all parameters frozen?")
        # Every replica reports, and the reports of an iteration are added up.
        replicas = max(1, self.config.num_learners)
        self.metrics.log_value((ALL_MODULES, GRADIENT_STEPS), steps / replicas, reduce="sum")
        for module_id, replaced in self._replaced.items():
            self.metrics.log_value((module_id, RESULTS, "replaced"), replaced / replicas, reduce="sum")
        self._replaced = dict.fromkeys((*self._gnts, *self._rules), 0)
        if steps > 1 or self._gradient_steps >= self._measured + MEASURE_EVERY:
            self._measured = self._gradient_steps
            for module_id, diagnostics in self._diagnostics.items():
                numbers = diagnostics.measure(self._gnts.get(module_id), self._reports.get(module_id))
                for path, value in numbers.items():
                    lifetime = path[-1].endswith("_lifetime")
                    reduction = {"reduce": "max"} if lifetime else {"reduce": "mean", "window": 1}
                    self.metrics.log_value((module_id, RESULTS, *path), value, **reduction)
        super().after_gradient_based_update(timesteps=timesteps)

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state(components, not_components=not_components, **kwargs)
        if self.has_component(COMPONENT_GNT, components, not_components):
            state[COMPONENT_GNT] = {
                "modules": {module_id: to_arrays(made.state_dict()) for module_id, made in self._methods.items()},
                "methods": {module_id: type(made).__name__ for module_id, made in self._methods.items()},
                "random_state": None if self.config.seed is None else random_state(),
                **self._own_state(),
            }
        return state

    @property
    def _methods(self) -> dict[str, Any]:
        """What acts on each module after the optimizer's step."""
        return self._gnts | self._rules

    def _own_state(self) -> dict[str, int]:
        """Whatever else must go on counting in a resumed run."""
        return {GRADIENT_STEPS: self._gradient_steps}

    def _set_own_state(self, state: dict[str, Any]) -> None:
        self._gradient_steps = self._gradient_steps_reported = int(state[GRADIENT_STEPS])
        self._measured = -MEASURE_EVERY

    def set_state(self, state: dict[str, Any]) -> None:
        if COMPONENT_GNT in state:
            self.accept_older_weights()
        super().set_state(state)
        saved = state.get(COMPONENT_GNT)
        if saved is None:
            if COMPONENT_OPTIMIZER in state and self._methods:
                LOGGER.warning("the checkpoint has no state of the method: utilities, ages and the like start from zero")
            return
        for module_id, made in self._methods.items():
            if module_id in saved["modules"]:
                own, theirs = type(made).__name__, saved.get("methods", {}).get(module_id, "GenerateAndTest")
                if own != theirs:
                    raise InputError(
                        f"module {module_id!r}: the checkpoint is of {theirs}, and the config says {own}; call the same "
                        ".continual_backprop(...) or .plasticity(...), or load the weights alone"
                    )
                try:
                    made.load_state_dict(to_tensors(saved["modules"][module_id]))
                except InputError as error:
                    reason = str(error).replace("make GenerateAndTest with", "call .continual_backprop(...) with")
                    raise InputError(f".continual_backprop(...), module {module_id!r}: {reason}") from error
            else:
                LOGGER.warning(f"the checkpoint has no state of the method of {module_id!r}: it starts from zero")
        self._set_own_state(saved)
        if saved["random_state"] is not None and self.config.seed is not None:
            set_random_state(saved["random_state"])


def _average_over_replicas(averages: Tensor) -> None:
    torch.distributed.all_reduce(averages)
    averages /= torch.distributed.get_world_size()


def with_time_steps(
    optimizer: torch.optim.Optimizer, weight_decay: float = 0.0, betas: tuple[float, float] | None = None
) -> torch.optim.Optimizer:
    """`cbp_ray.Adam` with the parameters and settings of a new `torch.optim.Adam`; any other optimizer as it is.

    `weight_decay` becomes the L2 coefficient of any optimizer that has one, and so do `betas`.
    """
    if betas is not None:
        for group in optimizer.param_groups:
            if "betas" in group:
                group["betas"] = betas
    if weight_decay:
        for group in optimizer.param_groups:
            if "weight_decay" in group:
                group["weight_decay"] = weight_decay
    if type(optimizer) is not torch.optim.Adam or any(optimizer.defaults.get(name) for name in UNLIKE_OURS):
        return optimizer
    names = ("params", "lr", "betas", "eps", "weight_decay")
    return Adam([{name: group[name] for name in names} for group in optimizer.param_groups], fused=True)
