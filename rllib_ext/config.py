"""RLlib configs with `.continual_backprop(...)` and `.plasticity(...)`; that of PPO has the paper's settings (appendix D)."""

import difflib
import importlib.util
import logging
import math
import sys
import time
from inspect import signature
from typing import Any, Self

import gymnasium
import torch
from gymnasium.envs.registration import parse_env_id
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.algorithms.ppo.ppo import PPO, PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import ALL_MODULES, LEARNER_RESULTS, NUM_MODULE_STEPS_TRAINED_LIFETIME
from ray.tune.registry import ENV_CREATOR, _global_registry

from cbp_ray.algorithm.generate_and_test import GenerateAndTest
from cbp_ray.algorithm.initialization import Scheme
from cbp_ray.algorithm.preconditions import check_init
from cbp_ray.algorithm.settings import Settings
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import Distribution
from cbp_ray.methods import Method, ReDo, SelfNormalizedResets, methods
from cbp_ray.presets import Utility
from cbp_ray.problems import SlipperyAntConfig
from cbp_ray.validation import make, suggest, whole_number
from rllib_ext.ant.algorithm_mixin import GlobalStepAlgorithm, slippery
from rllib_ext.ant.friction import PAPER
from rllib_ext.learners.topology import treatable_layers

LOGGER = logging.getLogger(__name__)

CALL = ".continual_backprop(replacement_rate=1e-4, maturity_threshold=100)"
WITHOUT_UPDATE = "num_steps_without_update"
"""Name of a result: training steps so far in which nothing was learned because nothing was sampled."""
TRIES = 10
"""Training steps in a row that may sample nothing."""
RESTART_SECONDS = 60.0
"""How long a training step waits for a new runner while none is alive."""
DEFAULTS: dict[str, Any] = {name: setting.default for name, setting in signature(GenerateAndTest).parameters.items()}
"""What `GenerateAndTest` takes for what it is not told."""


class ContinualBackpropConfigMixin(AlgorithmConfig):
    """Gives a config of RLlib the calls `.continual_backprop(...)` and `.training(weight_decay=...)`.

    The config's learner class must have `rllib_ext.learners.mixin.ContinualBackpropLearnerMixin`.
    """

    # On the class, because configs from before they were there have none of their own.
    plasticity_settings: dict[str, Any] | None = None
    betas: tuple[float, float] | None = None

    def __init__(self, algo_class: Any = None) -> None:
        super().__init__(algo_class=algo_class)
        self.continual_backprop_settings: dict[str, Any] | None = None
        self.plasticity_settings = None
        self.weight_decay = 0.0
        self.betas = None

    def continual_backprop(
        self,
        *,
        replacement_rate: float = DEFAULTS["replacement_rate"],
        maturity_threshold: int = DEFAULTS["maturity_threshold"],
        decay_rate: float = DEFAULTS["decay_rate"],
        utility: Utility | None = DEFAULTS["utility"],
        preset: str = DEFAULTS["preset"],
        replacement: str = DEFAULTS["replacement"],
        init: Scheme | dict[str, Distribution] | None = DEFAULTS["init"],
        seed: int | None = None,
    ) -> Self:
        """Switches generate-and-test on, for every module that is trained.

        Args:
          replacement_rate: ρ, the fraction of a layer's units replaced per mini-batch.
          maturity_threshold: m; a unit is safe until it is older than this many mini-batches.
          decay_rate: η of the running averages.
          utility: which measure decides; by default the preset's own.
          preset: `paper` or `nature2024`.
          replacement: `accumulate` or `bernoulli`.
          init: where new weights come from; by default what each layer was created with.
          seed: seed of new weights; by default that of `.debugging(seed=...)`, or 0.

        `cbp_ray.GenerateAndTest` explains all of them. They are checked when the algorithm is built.
        """
        self.continual_backprop_settings = {name: value for name, value in locals().items() if name in DEFAULTS}
        self.plasticity_settings = None
        return self

    def plasticity(self, method: str, *, seed: int | None = None, **settings: Any) -> Self:
        """Switches a method on that keeps networks able to learn, for every module that is trained.

        Args:
          method: its name in experiments: `redo`, `snr_geometric`, `l2_init`, `wasserstein`, `shrink_perturb`, `clipping`,
            `upgd`, `swr`, `cbp` for `.continual_backprop(...)`, `bp` for none, or one of your own (`CBP_RAY_METHODS`).
          seed: seed of whatever it draws; by default that of `.debugging(seed=...)`, or 0.
          settings: its settings in experiments. A step is a mini-batch here.

        `docs/methods.md` has all methods. The last such call counts. Settings are checked when the algorithm is built.

        Example:
          >>> ContinualPPOConfig().plasticity("redo", threshold=0.1, every=100).plasticity_settings["name"]
          'redo'
        """
        if "weight_decay" in settings:
            raise InputError(f".plasticity({method!r}): weight decay is the optimizer's; call .training(weight_decay=...)")
        if method == "cbp":
            unknown = [name for name in settings if name not in DEFAULTS]
            if unknown:
                raise InputError(f".plasticity('cbp', {unknown[0]}=...): unknown setting; {suggest(unknown[0], DEFAULTS)}")
            return self.continual_backprop(seed=seed, **settings)
        self.continual_backprop_settings = None
        self.plasticity_settings = {"name": method, "seed": seed, **settings}
        return self

    def training(
        self, *, weight_decay: float = NotProvided, betas: tuple[float, float] | None = NotProvided, **kwargs: Any
    ) -> Self:
        """Sets the training related configuration.

        Args:
          weight_decay: L2 coefficient λ of all weights and biases; Adam's gradient becomes g + λ w ("PPO+L2").
          betas: Adam's decay rates; (0.99, 0.99) is "non-stationary Adam" (Dohare et al. 2023). None: RLlib's.
          kwargs: what the algorithm's own config takes.
        """
        super().training(**kwargs)
        if betas is not NotProvided:
            self.betas = betas
            self._check_betas()
        if weight_decay is not NotProvided:
            self.weight_decay = weight_decay
            self._check_weight_decay()
        return self

    def environment(self, *args: Any, **kwargs: Any) -> Self:
        """Sets the environment; on `SlipperyAnt-v0`, friction goes by the time-steps of all env runners together."""
        super().environment(*args, **kwargs)
        return slippery(self)

    def validate(self) -> None:
        slippery(self)  # again, because the environment may have been set without the call
        _check_environment(self.env)
        self._check_continual_backprop()
        super().validate()

    def _check_continual_backprop(self) -> None:
        if self.framework_str != "torch":
            raise InputError(f'.framework("{self.framework_str}"): {type(self).__name__} needs torch; call .framework("torch")')
        if not (self.enable_rl_module_and_learner and self.enable_env_runner_and_connector_v2):
            raise InputError(
                f".api_stack(...): {type(self).__name__} needs RLlib's new API stack; remove the call, or call "
                ".api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)"
            )
        self._check_weight_decay()
        configs = [self, *map(self.get_config_for_module, self.algorithm_config_overrides_per_module)]
        for config in configs:
            if config.continual_backprop_settings is not None:
                _check_settings(config.continual_backprop_settings)
            config.plasticity_method()
            config._check_betas()
        if self.continual_backprop_settings is None and self.plasticity_method() is None:
            return
        if self.torch_compile_learner and "complete" in str(self.torch_compile_learner_what_to_compile).lower():
            raise InputError(
                ".framework(torch_compile_learner_what_to_compile=...): generate-and-test can't be compiled with the update; "
                'call .framework(torch_compile_learner=False), or compile "forward_train"'
            )
        if not self.acts_on_units():
            return
        for model_config in (self.model_config, getattr(self._rl_module_spec, "model_config", None)):
            sizes = model_config.get("fcnet_hiddens") if isinstance(model_config, dict) else None
            if sizes is None or len(sizes):
                continue
            raise InputError(
                f".rl_module(model_config={{'fcnet_hiddens': {sizes}}}): a network without a hidden layer has no units to "
                "replace; call .rl_module(model_config={'fcnet_hiddens': [256, 256]}), or remove the call"
            )

    def plasticity_method(self) -> Method | None:
        """The method of `.plasticity(...)`; None if there is none.

        Raises:
          InputError: if it is not known, its settings are wrong, or RLlib's learners don't have it.
        """
        if self.plasticity_settings is None:
            return None
        name = self.plasticity_settings["name"]
        settings = {key: value for key, value in self.plasticity_settings.items() if key != "seed"}
        known = methods()
        if not isinstance(name, str) or name not in known:
            raise InputError(f".plasticity({name!r}): must be a method, {suggest(str(name), known)}")
        made = make(known[name], settings, f".plasticity({name!r})")
        if made.rllib() is None:
            have = [each for each, method in known.items() if method.ppo_label]
            raise InputError(f".plasticity({name!r}): must be a method that RLlib's learners have: {', '.join(have)}")
        if self.plasticity_settings["seed"] is not None:
            whole_number(f".plasticity({name!r}, seed=...)", self.plasticity_settings["seed"])
        return made if made.rllib() else None

    def _check_betas(self) -> None:
        if self.betas is None:
            return
        if (
            not isinstance(self.betas, tuple | list)
            or len(self.betas) != 2
            or not all(isinstance(beta, float | int) and 0 <= beta < 1 for beta in self.betas)
        ):
            raise InputError(
                f".training(betas=...): must be two numbers in [0, 1), got {self.betas!r}; call .training(betas=(0.99, 0.99))"
            )

    def _check_weight_decay(self) -> None:
        is_number = isinstance(self.weight_decay, int | float) and not isinstance(self.weight_decay, bool)
        if not is_number or not 0 <= self.weight_decay < math.inf:
            raise InputError(
                f".training(weight_decay=...): must be a number, 0 or more, got {self.weight_decay!r}; "
                "call .training(weight_decay=1e-4)"
            )

    def acts_on_units(self) -> bool:
        """Whether whole units are replaced, so that the networks' hidden layers have to be found."""
        method = self.plasticity_method()
        return self.continual_backprop_settings is not None or isinstance(method, ReDo | SelfNormalizedResets)

    def build_learner_group(self, *, env: Any = None, spaces: Any = None, rl_module_spec: Any = None, **kwargs: Any) -> Any:
        """Refuses modules that can't be treated here, in one line, and not in an actor somewhere."""
        if rl_module_spec is None:
            rl_module_spec = self.get_multi_rl_module_spec(env=env, spaces=spaces)
        if self.num_learners > 0:
            with torch.random.fork_rng(devices=[]):
                modules = rl_module_spec.build().as_multi_rl_module()
            for module_id in modules.keys():  # noqa: SIM118  # not a dict
                if self.get_config_for_module(module_id).acts_on_units():
                    treatable_layers(module_id, modules[module_id])
        return super().build_learner_group(env=env, spaces=spaces, rl_module_spec=rl_module_spec, **kwargs)


def _check_environment(name: Any) -> None:
    """Refuses a name that nobody knows. RLlib would find out in a worker, and fail with an unrelated error."""
    registry: Any = _global_registry
    # Tune's registry has ASCII names only, and fails over others.
    if not isinstance(name, str) or (name.isascii() and registry.contains(ENV_CREATOR, name)):
        return
    if ":" in name:
        _check_module_of_environment(name)
        return
    specs = gymnasium.registry.values()
    unversioned = {spec.name if spec.namespace is None else f"{spec.namespace}/{spec.name}" for spec in specs}
    known = [*gymnasium.registry, *unversioned]
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        fix = f"did you mean {close[0]!r}?" if close else "register it first"
        raise InputError(f".environment({name!r}): must be one of Gymnasium's, or known to ray.tune.register_env; {fix}")


def _check_module_of_environment(name: str) -> None:
    """Refuses MODULE:NAME without a module that can be found, which Gymnasium would import, or without a name after it."""
    module, _, rest = name.partition(":")
    try:
        if ":" in rest or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError
        parse_env_id(rest)
    except (gymnasium.error.Error, ValueError):
        raise InputError(
            f".environment({name!r}): must be MODULE:NAME, got another form; use 'package.module:Name-v0'"
        ) from None
    reason = ""
    try:
        # `__main__`, for one, can be imported but not found.
        found = sys.modules.get(module) is not None or importlib.util.find_spec(module) is not None
    except (Exception, SystemExit) as error:  # whatever the packages around the module do when they are imported
        found, reason = False, f" ({' '.join(str(error).split()) or type(error).__name__})"
    if not found:
        raise InputError(f".environment({name!r}): module {module} must be there, got none{reason}; install it, or correct it")


def _check_settings(settings: dict[str, Any]) -> None:
    named = {name: value for name, value in settings.items() if name != "init"}
    # What is not given can't be wrong.
    named |= {name: value for name, value in (("utility", "overall"), ("seed", 0)) if named[name] is None}
    seed, init = settings["seed"], settings["init"]
    try:
        if seed is not None:
            whole_number("seed", seed, below=2**64)
        check_init(init)
        Settings(**named)
    except InputError as error:
        reason = str(error).removeprefix("GenerateAndTest: ")
        raise InputError(f".continual_backprop(...): {reason}; for example {CALL}") from error


class ContinualPPO(GlobalStepAlgorithm, PPO):
    """PPO whose iterations all learn: one in which every runner died waits for new ones, and samples again."""

    missed = 0
    """Training steps in a row, up to now, that sampled nothing."""

    @classmethod
    def get_default_config(cls) -> "ContinualPPOConfig":
        return ContinualPPOConfig()

    def restore_env_runners(self, env_runner_group: EnvRunnerGroup) -> list[int]:
        restored: list[int] = super().restore_env_runners(env_runner_group)
        deadline = time.monotonic() + RESTART_SECONDS
        samples = env_runner_group is self.env_runner_group and env_runner_group.num_remote_env_runners() > 0
        # Ray starts no runner again that the config does not want to have back.
        returns = samples and self.config.restart_failed_env_runners
        while returns and not env_runner_group.num_healthy_remote_workers():
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
            restored += super().restore_env_runners(env_runner_group)
        return restored

    def training_step(self) -> None:
        before = self._steps_trained()
        super().training_step()
        self.missed = self.missed + 1 if self._steps_trained() == before else 0
        self.metrics.log_value(WITHOUT_UPDATE, int(self.missed > 0), reduce="lifetime_sum")
        if self.missed:
            said = "no environment runner returned an episode; see the errors of the runners above"
            # Also of the steps after that, for callers that go on.
            if self.missed >= TRIES:
                raise RuntimeError(f"{self.missed} times in a row, {said}")
            LOGGER.warning(f"nothing was learned, and it is tried again: {said}")

    def _steps_trained(self) -> Any:
        return self.metrics.peek((LEARNER_RESULTS, ALL_MODULES, NUM_MODULE_STEPS_TRAINED_LIFETIME), default=0)


def ppo_settings(problem: SlipperyAntConfig) -> dict[str, Any]:
    """The settings of PPO in an experiment, for `.training(...)`."""
    return {
        "train_batch_size_per_learner": problem.iteration_size,
        "num_epochs": problem.epochs,
        "minibatch_size": problem.minibatch_size,
        "gamma": problem.discount,
        "lambda_": problem.gae_lambda,
        "clip_param": problem.clip,
    }


class ContinualPPOConfig(ContinualBackpropConfigMixin, PPOConfig):
    """PPO as in the paper, and with `.continual_backprop(...)` Continual PPO; with `.training(weight_decay=...)` PPO+L2.

    The networks are those of `rllib_ext.learners.rl_module`. RLlib's KL term, clamp of the value loss and everything else that
    the paper does not have are off.

    Example:
      >>> config = (
      ...     ContinualPPOConfig()
      ...     .environment("Pendulum-v1")
      ...     .continual_backprop(replacement_rate=1e-4, maturity_threshold=500)
      ... )
      >>> config.minibatch_size
      128
    """

    def __init__(self, algo_class: Any = None) -> None:
        super().__init__(algo_class=algo_class or ContinualPPO)
        self.training(lr=1e-4, **ppo_settings(PAPER), use_kl_loss=False, kl_coeff=0.0, entropy_coeff=0.0)
        self.training(vf_clip_param=float("inf"), vf_loss_coeff=1.0, grad_clip=None)
        # An iteration has at least one training step that sampled something.
        self.reporting(min_sample_timesteps_per_iteration=1)

    def get_default_learner_class(self) -> Any:
        from rllib_ext.learners.ppo import ContinualPPOTorchLearner

        return ContinualPPOTorchLearner

    def get_default_rl_module_spec(self) -> Any:
        from rllib_ext.learners.rl_module import ContinualPPOTorchRLModule

        return RLModuleSpec(module_class=ContinualPPOTorchRLModule)

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        # None: free if actions are a Box, which the module knows and the config does not.
        includes: dict[str, Any] = super()._model_config_auto_includes | {"free_log_std": None}
        return includes
