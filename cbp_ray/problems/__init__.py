"""The problems: each owns its settings, defaults, metrics and data. A stream is a function of its seed and position alone."""

from cbp_ray.problems.bit_flipping import BitFlipping as BitFlipping
from cbp_ray.problems.bit_flipping import BitFlippingConfig as BitFlippingConfig
from cbp_ray.problems.permuted_mnist import PermutedMnist as PermutedMnist
from cbp_ray.problems.permuted_mnist import PermutedMnistConfig as PermutedMnistConfig
from cbp_ray.problems.problem import Problem as Problem
from cbp_ray.problems.slippery_ant import SlipperyAntConfig as SlipperyAntConfig

PROBLEMS: dict[str, type[Problem]] = {
    "bit_flipping": BitFlippingConfig,
    "permuted_mnist": PermutedMnistConfig,
    "slippery_ant": SlipperyAntConfig,
}
DEFAULT_PROBLEM = "bit_flipping"
