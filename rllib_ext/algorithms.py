"""Generate-and-test in RLlib's other algorithms: their configs and learners, otherwise as RLlib has them.

Each config takes the calls of RLlib's own and `.continual_backprop(...)`. Networks are RLlib's defaults. What happens to target
networks is in `rllib_ext.learners.targets`. Another algorithm is one more line; if its RLModule has parts of other names,
`rllib_ext.learners.topology.NETWORKS` must name them.

With Tune, `tune.Tuner(config.algo_class, param_space=config)`: Tune makes the config again from the class that it is given, and
RLlib's own classes would leave generate-and-test out.
"""

from typing import Any

from ray.rllib.algorithms.appo.appo import APPO, APPOConfig
from ray.rllib.algorithms.appo.torch.appo_torch_learner import APPOTorchLearner
from ray.rllib.algorithms.dqn.dqn import DQN, DQNConfig
from ray.rllib.algorithms.dqn.torch.dqn_torch_learner import DQNTorchLearner
from ray.rllib.algorithms.impala.impala import IMPALA, IMPALAConfig
from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.algorithms.sac.sac import SAC, SACConfig
from ray.rllib.algorithms.sac.torch.sac_torch_learner import SACTorchLearner

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


ContinualAPPO, ContinualAPPOConfig, ContinualAPPOTorchLearner = continual(APPO, APPOConfig, APPOTorchLearner)
ContinualIMPALA, ContinualIMPALAConfig, ContinualIMPALATorchLearner = continual(IMPALA, IMPALAConfig, IMPALATorchLearner)
ContinualSAC, ContinualSACConfig, ContinualSACTorchLearner = continual(SAC, SACConfig, SACTorchLearner)
ContinualDQN, ContinualDQNConfig, ContinualDQNTorchLearner = continual(DQN, DQNConfig, DQNTorchLearner)
