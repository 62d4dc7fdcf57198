"""Generate-and-test in RLlib's other algorithms: their configs and learners, otherwise as RLlib has them.

Each config takes the calls of RLlib's own and `.continual_backprop(...)`. Networks are RLlib's defaults, except the Q-networks
of SAC. What happens to target networks is in `rllib_ext.targets`.

With Tune, `tune.Tuner(config.algo_class, param_space=config)`: Tune makes the config anew from the class that it is given, and
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

from rllib_ext.config import ContinualBackpropConfigMixin
from rllib_ext.env_runner import SlipperyAlgorithm
from rllib_ext.learner import ContinualBackpropLearnerMixin


class ContinualAPPOTorchLearner(ContinualBackpropLearnerMixin, APPOTorchLearner):
    """APPO with generate-and-test."""


class ContinualIMPALATorchLearner(ContinualBackpropLearnerMixin, IMPALATorchLearner):
    """IMPALA with generate-and-test."""


class ContinualSACTorchLearner(ContinualBackpropLearnerMixin, SACTorchLearner):
    """SAC with generate-and-test on the policy and both Q-networks."""


class ContinualDQNTorchLearner(ContinualBackpropLearnerMixin, DQNTorchLearner):
    """DQN with generate-and-test."""


class ContinualAPPO(SlipperyAlgorithm, APPO):
    """APPO, made from `ContinualAPPOConfig`."""

    @classmethod
    def get_default_config(cls) -> "ContinualAPPOConfig":
        return ContinualAPPOConfig()


class ContinualAPPOConfig(ContinualBackpropConfigMixin, APPOConfig):
    """APPO with `.continual_backprop(...)`."""

    def __init__(self, algo_class: Any = None) -> None:
        super().__init__(algo_class=algo_class or ContinualAPPO)

    def get_default_learner_class(self) -> Any:
        return ContinualAPPOTorchLearner


class ContinualIMPALA(SlipperyAlgorithm, IMPALA):
    """IMPALA, made from `ContinualIMPALAConfig`."""

    @classmethod
    def get_default_config(cls) -> "ContinualIMPALAConfig":
        return ContinualIMPALAConfig()


class ContinualIMPALAConfig(ContinualBackpropConfigMixin, IMPALAConfig):
    """IMPALA with `.continual_backprop(...)`."""

    def __init__(self, algo_class: Any = None) -> None:
        super().__init__(algo_class=algo_class or ContinualIMPALA)

    def get_default_learner_class(self) -> Any:
        return ContinualIMPALATorchLearner


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


class ContinualSAC(SlipperyAlgorithm, SAC):
    """SAC, made from `ContinualSACConfig`."""

    @classmethod
    def get_default_config(cls) -> "ContinualSACConfig":
        return ContinualSACConfig()


class ContinualSACConfig(ContinualBackpropConfigMixin, SACConfig):
    """SAC with `.continual_backprop(...)`."""

    def __init__(self, algo_class: Any = None) -> None:
        super().__init__(algo_class=algo_class or ContinualSAC)

    def get_default_learner_class(self) -> Any:
        return ContinualSACTorchLearner

    def get_default_rl_module_spec(self) -> Any:
        return RLModuleSpec(module_class=DefaultSACTorchRLModule, catalog_class=PlainSACCatalog)


class ContinualDQN(SlipperyAlgorithm, DQN):
    """DQN, made from `ContinualDQNConfig`."""

    @classmethod
    def get_default_config(cls) -> "ContinualDQNConfig":
        return ContinualDQNConfig()


class ContinualDQNConfig(ContinualBackpropConfigMixin, DQNConfig):
    """DQN with `.continual_backprop(...)`."""

    def __init__(self, algo_class: Any = None) -> None:
        super().__init__(algo_class=algo_class or ContinualDQN)

    def get_default_learner_class(self) -> Any:
        return ContinualDQNTorchLearner
