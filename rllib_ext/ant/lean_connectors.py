"""RLlib's default connectors in one piece each, for the usual case: what they do in a dozen general steps, in the few needed.

Between the environments and the policy, RLlib's pipelines take longer than policy and physics together. Where a runner has
exactly the default pieces, a stateless torch module and plain vectors as observations and actions, `lean` gives it pipelines
that hold the same pieces, and compute the same numbers to the last bit, without calling them.
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from ray.rllib.connectors import env_to_module, module_to_env
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

BEFORE = (
    env_to_module.AddObservationsFromEpisodesToBatch,
    env_to_module.AddTimeDimToBatchAndZeroPad,
    env_to_module.AddStatesFromEpisodesToBatch,
    env_to_module.BatchIndividualItems,
    env_to_module.NumpyToTensor,
)
AFTER = (
    module_to_env.GetActions,
    module_to_env.TensorToNumpy,
    module_to_env.UnBatchToIndividualItems,
    module_to_env.RemoveSingleTsTimeRankFromBatch,
    module_to_env.NormalizeAndClipActions,
    module_to_env.ListifyDataForVectorEnv,
)


def lean(
    before: env_to_module.EnvToModulePipeline, after: module_to_env.ModuleToEnvPipeline, module: Any, device: Any
) -> tuple[Any, Any]:
    """The lean pipelines, or those that are given where these would not do."""
    usual = (
        tuple(map(type, before.connectors)) == BEFORE
        and tuple(map(type, after.connectors)) == AFTER
        and isinstance(module, TorchRLModule)
        and not module.is_stateful()
        and all(_is_vector(space) for space in (before.input_observation_space, after.input_action_space))
        and torch.device(device or "cpu").type == "cpu"
    )
    return (_copy(before, LeanEnvToModule), _copy(after, LeanModuleToEnv)) if usual else (before, after)


def _is_vector(space: Any) -> bool:
    return isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.dtype == np.float32


def _copy(pipeline: Any, lean_class: type[Any]) -> Any:
    return lean_class(pipeline.input_observation_space, pipeline.input_action_space, connectors=pipeline.connectors)


class LeanEnvToModule(env_to_module.EnvToModulePipeline):
    """The latest observations as one tensor."""

    def __call__(self, **kwargs: Any) -> dict[str, Any]:
        return {Columns.OBS: torch.from_numpy(np.stack(kwargs[Columns.OBS]))}


class LeanModuleToEnv(module_to_env.ModuleToEnvPipeline):
    """Actions, drawn from the distribution that the module gives, and what they become for the environment."""

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        settings, space = self.connectors[AFTER.index(module_to_env.NormalizeAndClipActions)], self.action_space
        self.connectors[0](batch=batch, **kwargs)
        arrays = {name: tensor.detach().numpy() for name, tensor in batch.items()}
        actions = arrays[Columns.ACTIONS]
        if settings.normalize_actions and np.all(space.bounded_below) and np.all(space.bounded_above):
            unsquashed = space.low + (actions + 1.0) * (space.high - space.low) / 2.0
            arrays[Columns.ACTIONS_FOR_ENV] = np.clip(unsquashed, space.low, space.high)
        elif settings.clip_actions and not settings.normalize_actions:
            arrays[Columns.ACTIONS_FOR_ENV] = np.clip(actions, space.low, space.high)
        return arrays
