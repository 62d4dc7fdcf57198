"""Generate-and-test in RLlib's other algorithms: their configs and learners, otherwise as RLlib has them.

Each config takes the calls of RLlib's own and `.continual_backprop(...)`. Networks are RLlib's defaults, except the Q-networks
of SAC. What happens to target networks is in `rllib_ext.learners.targets`. Another algorithm is one more line; if its RLModule
has parts of other names, `rllib_ext.learners.topology.NETWORKS` must name them.

With Tune, `tune.Tuner(config.algo_class, param_space=config)`: Tune makes the config again from the class that it is given, and
RLlib's own classes would leave generate-and-test out.
"""

from typing import Any

import torch
from ray.rllib.algorithms.appo.appo import APPO, APPOConfig
from ray.rllib.algorithms.appo.torch.appo_torch_learner import APPOTorchLearner
from ray.rllib.algorithms.dqn.dqn import DQN, DQNConfig
from ray.rllib.algorithms.dqn.torch.dqn_torch_learner import DQNTorchLearner
from ray.rllib.algorithms.impala.impala import IMPALA, IMPALAConfig
from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.algorithms.sac.sac import SAC, SACConfig
from ray.rllib.algorithms.sac.sac_catalog import SACCatalog
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.algorithms.sac.torch.sac_torch_learner import SACTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ENCODER_OUT
from ray.rllib.core.models.configs import MLPEncoderConfig
from ray.rllib.core.models.torch.encoder import TorchMLPEncoder
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rllib_ext.ant.algorithm_mixin import GlobalStepAlgorithm
from rllib_ext.config import ContinualBackpropConfigMixin
from rllib_ext.learners.mixin import ContinualBackpropLearnerMixin


def continual(algorithm: Any, config: Any, learner: Any, module: str = __name__) -> tuple[Any, Any, Any]:
    """Gives an algorithm of RLlib generate-and-test.

    Args:
      algorithm: its class.
      config: its config's class.
      learner: the class of its torch learner.
      module: `__name__` of the module whose variables the results become, under the names below; pickle looks for them there.

    Returns:
      The classes `Continual<algorithm>`, `Continual<algorithm>Config` and `Continual<learner>`.
    """

    class Learner(ContinualBackpropLearnerMixin, learner):
        pass

    class Algorithm(GlobalStepAlgorithm, algorithm):
        @classmethod
        def get_default_config(cls) -> Any:
            return Config()

    class Config(ContinualBackpropConfigMixin, config):
        def __init__(self, algo_class: Any = None) -> None:
            super().__init__(algo_class=algo_class or Algorithm)

        def get_default_learner_class(self) -> Any:
            return Learner

    name = algorithm.__name__
    made = (
        (Algorithm, f"Continual{name}", f"{name}, made from `Continual{name}Config`."),
        (Config, f"Continual{name}Config", f"The config of {name} with `.continual_backprop(...)`."),
        (Learner, f"Continual{learner.__name__}", f"The learner of {name} with generate-and-test."),
    )
    for each, class_name, docstring in made:
        each.__name__ = each.__qualname__ = class_name
        each.__module__, each.__doc__ = module, docstring
    return Algorithm, Config, Learner


class JoiningEncoder(TorchMLPEncoder):
    """Encodes observation and action, end to end, with one network (Haarnoja et al. 2018)."""

    def _forward(self, inputs: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {ENCODER_OUT: self.net(torch.cat([inputs[Columns.OBS], inputs[Columns.ACTIONS]], dim=-1))}


class PlainSACCatalog(SACCatalog):
    """Q-networks without RLlib's two streams, whose last layers are joined and skip layers: such units can't be told apart."""

    def _build_qf_encoder_continuous(self, framework: str) -> Any:
        sizes, activation = (self._model_config_dict[name] for name in ("fcnet_hiddens", "fcnet_activation"))
        config = MLPEncoderConfig(
            input_dims=[self.observation_space.shape[0] + self.action_space.shape[0]],
            hidden_layer_dims=sizes[:-1],
            hidden_layer_activation=activation,
            output_layer_dim=self.latent_dims[0],
            output_layer_activation=activation,
        )
        return JoiningEncoder(config)


class PlainSACConfig(SACConfig):
    """SAC with the networks of `PlainSACCatalog`."""

    def get_default_rl_module_spec(self) -> Any:
        return RLModuleSpec(module_class=DefaultSACTorchRLModule, catalog_class=PlainSACCatalog)


ContinualAPPO, ContinualAPPOConfig, ContinualAPPOTorchLearner = continual(APPO, APPOConfig, APPOTorchLearner)
ContinualIMPALA, ContinualIMPALAConfig, ContinualIMPALATorchLearner = continual(IMPALA, IMPALAConfig, IMPALATorchLearner)
ContinualSAC, ContinualSACConfig, ContinualSACTorchLearner = continual(SAC, PlainSACConfig, SACTorchLearner)
ContinualDQN, ContinualDQNConfig, ContinualDQNTorchLearner = continual(DQN, DQNConfig, DQNTorchLearner)
