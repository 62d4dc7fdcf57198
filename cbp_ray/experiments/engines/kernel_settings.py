"""A config in the kernels' terms: what they are compiled for, and what they are told at run time."""

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.initial_weights import bound
from cbp_ray.kernels.activations import Activation
from cbp_ray.kernels.choices import Choices, Numbers, Rule, Tester, Utility


def kernel_settings(config: OnlineConfig) -> tuple[Choices, Numbers]:
    """What a kernel is compiled for, and what it is told at run time: Backprop, and what method and optimizer change."""
    method, decay = config.algorithm.kernel(), config.algorithm.decay
    assert method is not None  # the engine would have refused
    told = {
        "activation": config.network.activation,
        "decays": decay > 0,
        "weight_decay": decay,
        "bound": bound(config.problem.inputs, config.kinds[0]),
        "bound_out": bound(config.sizes[-2], config.kinds[-1]),
        "input_norm": config.network.input_norm > 0,
        "input_decay": config.network.input_norm,
        "layer_norm": config.network.layer_norm and config.algorithm.hidden,
        # The statistics of OnlineNorm would have moved before the example is shown again.
        "plasticity": config.diagnostics and not method.get("normalized"),
        **config.optimizer.kernel(),
        **method,
    }
    told["activation"] = int(Activation[told["activation"].upper()])
    for name, codes in (("utility", Utility), ("rule", Rule), ("tester", Tester)):
        if name in told:
            told[name] = int(codes[told[name].upper()])
    choices = Choices(**{name: told.pop(name) for name in Choices._fields if name in told})
    return choices, Numbers(**told)
