"""Generate-and-test inside RLlib's learners: after the optimizer's step of every mini-batch (Algorithm 3 of the paper)."""

from typing import Any

import torch
from ray.rllib.core import COMPONENT_OPTIMIZER
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.metrics import ALL_MODULES
from torch import Tensor

from cbp_ray.algorithm.generate_and_test import GenerateAndTest
from cbp_ray.algorithm.step_report import StepReport
from cbp_ray.errors import InputError
from rllib_ext.diagnostics import Diagnostics
from rllib_ext.learner_state import LOGGER, copy_of_state, random_state, set_random_state, tensors
from rllib_ext.optimizers import with_time_steps
from rllib_ext.targets import Targets
from rllib_ext.topology import treatable_layers

COMPONENT_GNT = "generate_and_test"
"""Name of the checkpoint's part that holds utilities, ages and running averages."""
RESULTS = "continual_backprop"
"""Under a module's learner results: what generate-and-test did, and how able to learn the networks are."""
GRADIENT_STEPS = "num_gradient_steps"
MEASURE_EVERY = 100
"""Gradient steps between two diagnoses of the networks, where an update is a single mini-batch (DQN, SAC, IMPALA, APPO)."""


class ContinualBackpropLearnerMixin(TorchLearner):
    """Puts generate-and-test into any torch learner of RLlib: `class MyLearner(ContinualBackpropLearnerMixin, ThatLearner)`.

    The settings come from `config.continual_backprop(...)`, per module if the config has overrides per module; without them
    the module is trained as the learner underneath does. Changes to that learner:

    - After the optimizer's step, in `apply_gradients`, one step of generate-and-test on every module in the mini-batch.
      (`after_gradient_based_update` would be once per iteration.)
    - `torch.optim.Adam` becomes `cbp_ray.Adam`, equal to it until the first replacement (to rounding in float32 on a CPU, where
      it is compiled, otherwise bit for bit) and with a time step per weight from then on; `config.weight_decay` is its L2
      coefficient. Other optimizers stay.
    - Gradients are looked through for numbers that are not finite all at once; only if there are any, RLlib does what it does.
    - With several learners, averages over the mini-batch are averages over the mini-batches of all replicas. Gradients,
      seeds and states being equal, so are the replacements.
    - The state has utilities, ages, averages, time steps and random state besides weights and moments.
    - Target networks follow as `rllib_ext.targets` says.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._gnts: dict[str, GenerateAndTest] = {}
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
        module = self.module[module_id].unwrapped()
        try:
            layers = treatable_layers(module_id, module)
        except InputError:
            if settings is None:
                return  # nothing to treat, nothing to report
            raise
        self._diagnostics[module_id] = Diagnostics(module, layers)
        if settings is None:
            return
        seed = settings["seed"] if settings["seed"] is not None else self.config.seed or 0
        optimizers = [optimizer for _, optimizer in self.get_optimizers_for_module(module_id)]
        try:
            gnt = GenerateAndTest(module, optimizers, layers=layers, **settings | {"seed": seed})
        except InputError as error:
            raise InputError(f".continual_backprop(...), module {module_id!r}: {error}") from error
        if self.distributed:
            gnt.average_over_replicas = _average_over_replicas
        self._gnts[module_id], self._replaced[module_id] = gnt, 0
        if getattr(config, "tau", 1.0) < 1.0:
            self._targets[module_id] = Targets(module, layers)

    def register_optimizer(self, *, optimizer: torch.optim.Optimizer, **kwargs: Any) -> None:
        weight_decay = getattr(self.config.get_config_for_module(kwargs["module_id"]), "weight_decay", 0.0)
        if weight_decay:
            # SAC's temperature is no weight of a network.
            weights = set(self.module[kwargs["module_id"]].parameters())
            weight_decay *= all(param in weights for param in kwargs["params"])
        super().register_optimizer(optimizer=with_time_steps(optimizer, weight_decay), **kwargs)

    def add_module(self, *, module_id: str, **kwargs: Any) -> Any:
        spec = super().add_module(module_id=module_id, **kwargs)
        self._watch(module_id)
        return spec

    def remove_module(self, module_id: str, **kwargs: Any) -> Any:
        for watchers in (self._gnts, self._diagnostics):
            if module_id in watchers:
                watchers.pop(module_id).close()
        for kept in (self._targets, self._reports, self._replaced):
            kept.pop(module_id, None)
        return super().remove_module(module_id, **kwargs)

    def _make_batch_if_necessary(self, training_data: Any) -> Any:
        with torch.no_grad():  # values for advantages need no graph, and are no part of any mini-batch
            return super()._make_batch_if_necessary(training_data)

    def _create_iterator_if_necessary(self, **kwargs: Any) -> Any:
        batches = super()._create_iterator_if_necessary(**kwargs)
        if isinstance(batches, dict):  # RLlib returns an empty one, and stumbles over it later
            raise RuntimeError(
                "no module that is to be trained has data in this iteration; check policies_to_train in "
                ".multi_agent(...) and the environment"
            )
        return batches

    def _update(self, batch: dict[str, Any]) -> Any:
        self._in_mini_batch = list(batch)
        for gnt in self._gnts.values():
            gnt.forget_forwards()
        return super()._update(batch)

    def apply_gradients(self, gradients_dict: dict[Any, Tensor]) -> None:
        self._step_optimizers(gradients_dict)
        self._gradient_steps += bool(gradients_dict)
        for module_id in self._in_mini_batch:
            gnt = self._gnts.get(module_id)
            if gnt is not None:
                report = self._reports[module_id] = gnt.step()
                if report.replaced:
                    self._replaced[module_id] += sum(map(len, report.replaced.values()))
                    if module_id in self._targets:
                        self._targets[module_id].follow(report.replaced)

    def _step_optimizers(self, gradients: dict[Any, Tensor]) -> None:
        """The learner's own `apply_gradients`, or the part of it that is left when all gradients are finite."""
        special = self._lr_scheduler_classes is not None or self._grad_scalers is not None
        if special or not gradients or not _all_finite(list(gradients.values())):
            super().apply_gradients(gradients)
            return
        for param, gradient in gradients.items():
            self._params[param].grad = gradient
        for optimizer in self._named_optimizers.values():
            optimizer.step()

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
        self._replaced = dict.fromkeys(self._gnts, 0)
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
        if self._check_component(COMPONENT_GNT, components, not_components):
            state[COMPONENT_GNT] = {
                "modules": {module_id: copy_of_state(gnt.state_dict()) for module_id, gnt in self._gnts.items()},
                "random_state": None if self.config.seed is None else random_state(),
                **self._own_state(),
            }
        return state

    def _own_state(self) -> dict[str, int]:
        """Whatever else must go on counting in a resumed run."""
        return {GRADIENT_STEPS: self._gradient_steps}

    def _set_own_state(self, state: dict[str, Any]) -> None:
        self._gradient_steps = self._gradient_steps_reported = int(state[GRADIENT_STEPS])
        self._measured = -MEASURE_EVERY

    def set_state(self, state: dict[str, Any]) -> None:
        if COMPONENT_GNT in state:
            # RLlib keeps its weights where it has made more updates than the state's owner: going back would be half done.
            self._weights_seq_no = 0
        super().set_state(state)
        saved = state.get(COMPONENT_GNT)
        if saved is None:
            if COMPONENT_OPTIMIZER in state and self._gnts:
                LOGGER.warning("the checkpoint has no state of generate-and-test: utilities and ages start anew")
            return
        for module_id, gnt in self._gnts.items():
            if module_id in saved["modules"]:
                try:
                    gnt.load_state_dict(tensors(saved["modules"][module_id]))
                except InputError as error:
                    reason = str(error).replace("make GenerateAndTest with", "call .continual_backprop(...) with")
                    raise InputError(f".continual_backprop(...), module {module_id!r}: {reason}") from error
            else:
                LOGGER.warning(f"the checkpoint has no state of generate-and-test of {module_id!r}: it starts anew")
        self._set_own_state(saved)
        if saved["random_state"] is not None and self.config.seed is not None:
            set_random_state(saved["random_state"])

    def _get_optimizer_state(self) -> dict[str, Any]:
        return {
            name: {"module_id": self._optimizer_name_to_module[name], "state": copy_of_state(optimizer.state_dict())}
            for name, optimizer in self._named_optimizers.items()
        }

    def _set_optimizer_state(self, state: dict[str, Any]) -> None:
        """As RLlib's, but numbers stay what they are: RLlib makes float32 tensors of counters and of float64 moments."""
        for name, saved in state.items():
            if name in self._named_optimizers:
                self._named_optimizers[name].load_state_dict(tensors(saved["state"]))


def _all_finite(gradients: list[Tensor]) -> bool:
    """One look at all gradients together; RLlib takes two at each. Norms too large to be numbers count as not finite."""
    return bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all())


def _average_over_replicas(averages: Tensor) -> None:
    torch.distributed.all_reduce(averages)
    averages /= torch.distributed.get_world_size()
