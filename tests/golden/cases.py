"""The small runs whose numbers are kept in `golden.json`: every engine, algorithm, optimizer, activation, preset and problem.

`python tests/golden/cases.py 'ant-*'` renews the records of the cases that match; a change of the rest is then refused.
"""

import fnmatch
import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding
import numpy as np

import rllib_ext  # noqa: F401
from cbp_ray.experiments import OnlineConfig, iterate_online
from cbp_ray.results.keys import config_key

RECORDS = Path(__file__).with_name("golden.json")
SGD, ADAM = {"name": "sgd", "step_size": 0.01}, {"name": "adam", "step_size": 0.01}
BP, LINEAR = {"name": "bp"}, {"name": "linear"}
L2, NORM = {"name": "l2", "weight_decay": 0.01}, {"name": "online_norm", "alpha_forward": 0.99, "alpha_backward": 0.9}
CBP = {"name": "cbp", "replacement_rate": 0.01, "maturity_threshold": 30}
UPGD = {"name": "upgd", "noise": 0.1, "decay_rate": 0.9, "weight_decay": 0.001}
PERTURBED = {"name": "shrink_perturb", "noise": 0.001, "weight_decay": 0.01}
SWR = {"name": "swr", "rate": 0.05, "every": 20, "decay_rate": 0.5}
REDO = {"name": "redo", "threshold": 0.8, "every": 50}
SNR = {"name": "snr_geometric", "rejection": 0.05, "maturity_threshold": 20, "decay_rate": 0.9}
NATURE = {**CBP, "preset": "nature2024"}


class Case(NamedTuple):
    """One experiment, its engine and its seeds."""

    config: dict[str, Any]
    engine: str
    seeds: tuple[int, ...] = (0, 7)
    exact: bool = True
    """False where bits may change and only rounding may: several runs stacked in one torch process."""


def bits(algorithm: dict[str, Any], optimizer: dict[str, Any], activation: str = "tanh", **rest: Any) -> dict[str, Any]:
    """A config of Bit-Flipping with two epochs in two bins, the second shorter."""
    problem = {"name": "bit_flipping", "flip_period": 300, **rest.pop("problem", {})}
    network = {"activation": activation, **rest.pop("network", {})}
    lengths = {"examples": 700, "bin_size": 400}
    return {"problem": problem, "network": network, "algorithm": algorithm, "optimizer": optimizer, **lengths, **rest}


def images(algorithm: dict[str, Any], optimizer: dict[str, Any], activation: str = "relu", **rest: Any) -> dict[str, Any]:
    """A config of Permuted MNIST with two tasks and a bit in two bins."""
    problem = {"name": "permuted_mnist", "task_length": 120}
    network = {"hidden": [20, 12], "activation": activation, **rest.pop("network", {})}
    lengths = {"examples": 260, "bin_size": 150}
    return {"problem": problem, "network": network, "algorithm": algorithm, "optimizer": optimizer, **lengths, **rest}


def ant(algorithm: dict[str, Any], activation: str = "tanh") -> dict[str, Any]:
    """A config of Slippery Ant with three frictions and four updates in two bins."""
    problem = {"name": "slippery_ant", "friction_period": 200, "iteration_size": 128, "epochs": 2, "minibatch_size": 32}
    network, optimizer = {"hidden": [16, 12], "activation": activation}, {"name": "adam", "step_size": 1e-3}
    lengths = {"examples": 512, "bin_size": 256}
    return {"problem": problem, "network": network, "algorithm": algorithm, "optimizer": optimizer, **lengths}


CASES = {
    "lane-bp-sgd-tanh": Case(bits(BP, SGD), "kernel", tuple(range(35))),
    "lane-bp-sgd-relu": Case(bits(BP, SGD, "relu"), "kernel"),
    "lane-bp-adam-swish": Case(bits(BP, ADAM, "swish"), "kernel"),
    "lane-linear-sgd": Case(bits(LINEAR, SGD), "kernel"),
    "lane-l2-sgd-sigmoid": Case(bits(L2, SGD, "sigmoid"), "kernel"),
    "lane-l2-adam-elu": Case(bits(L2, ADAM, "elu"), "kernel"),
    "lane-norm-sgd-leaky": Case(bits(NORM, SGD, "leaky_relu"), "kernel"),
    "lane-norm-adam-tanh": Case(bits(NORM, ADAM), "kernel"),
    "lane-cbp-sgd-tanh": Case(bits(CBP, SGD), "kernel"),
    "lane-cbp-adam-relu": Case(bits({**CBP, "weight_decay": 0.001}, ADAM, "relu"), "kernel"),
    "lane-cbp-random-bernoulli": Case(bits({**CBP, "utility": "random", "replacement": "bernoulli"}, SGD), "kernel"),
    "lane-nature-adam-tanh": Case(bits(NATURE, ADAM), "kernel"),
    "lane-cbp-adaptation-double": Case(bits({**CBP, "utility": "adaptation"}, SGD, dtype="float64"), "kernel"),
    "lane-cbp-wide-problem": Case(
        bits(CBP, SGD, problem={"inputs": 24, "flipping_bits": 4, "target_units": 9, "beta": 0.6}, network={"hidden": [3]}),
        "kernel",
    ),
    "torch-bp-sgd-tanh": Case(bits(BP, SGD), "torch"),
    "torch-linear-adam": Case(bits(LINEAR, ADAM), "torch"),
    "torch-l2-adam-sigmoid": Case(bits(L2, ADAM, "sigmoid"), "torch"),
    "torch-l2-sgd-elu": Case(bits(L2, SGD, "elu"), "torch"),
    "torch-norm-sgd-swish": Case(bits(NORM, SGD, "swish"), "torch"),
    "torch-cbp-sgd-leaky": Case(bits(CBP, SGD, "leaky_relu"), "torch"),
    "torch-cbp-adam-tanh": Case(bits(CBP, ADAM), "torch"),
    "torch-cbp-deep-relu": Case(bits(CBP, ADAM, "relu", network={"hidden": [8, 6]}), "torch"),
    "torch-nature-sgd-tanh": Case(bits(NATURE, SGD), "torch"),
    "torch-cbp-contribution": Case(bits({**CBP, "utility": "contribution"}, SGD, dtype="float64"), "torch"),
    "torch-cbp-weights-bernoulli": Case(bits({**CBP, "utility": "weight_magnitude", "replacement": "bernoulli"}, SGD), "torch"),
    "mlp-bp-sgd-relu": Case(images(BP, SGD), "kernel"),
    "mlp-linear-sgd": Case(images(LINEAR, SGD), "kernel"),
    "mlp-l2-sgd-relu": Case(images(L2, SGD), "kernel"),
    "mlp-norm-sgd-tanh": Case(images(NORM, SGD, "tanh"), "kernel"),
    "mlp-cbp-sgd-relu": Case(images(CBP, SGD, network={"hidden": [40, 30, 20]}), "kernel"),
    "mlp-cbp-adam-relu": Case(images(CBP, ADAM), "kernel"),
    "mlp-nature-sgd-elu": Case(images(NATURE, SGD, "elu", dtype="float64"), "kernel"),
    "mlp-cbp-mean-corrected": Case(
        images({**CBP, "utility": "mean_corrected_contribution", "weight_decay": 0.01}, SGD), "kernel"
    ),
    "torch-mnist-cbp-sgd": Case(images(CBP, SGD), "torch", (3,)),
    "torch-mnist-norm-adam": Case(images(NORM, ADAM, "swish"), "torch", (3,)),
    "stacked-cbp-sgd": Case(images(CBP, SGD), "torch", exact=False),
    # In float64: in float32, rounding alone moves these weights by half a percent, whatever the engine.
    "stacked-l2-adam": Case(images(L2, ADAM, "tanh", dtype="float64"), "torch", exact=False),
    "stacked-norm-sgd": Case(images(NORM, SGD, "sigmoid"), "torch", exact=False),
    "ant-bp-tanh": Case(ant(BP), "rllib", (1,)),
    "ant-l2-relu": Case(ant({"name": "l2", "weight_decay": 1e-3}, "relu"), "rllib", (1,)),
    "ant-cbp-tanh": Case(ant({**CBP, "replacement_rate": 0.05, "maturity_threshold": 4}), "rllib", (1, 2)),
    "ant-nature-swish": Case(ant({**NATURE, "replacement_rate": 0.2, "maturity_threshold": 4}, "swish"), "rllib", (1,)),
    "lane-upgd-sgd-tanh": Case(bits(UPGD, SGD), "kernel"),
    "lane-swr-adam-relu-norm": Case(bits(SWR, ADAM, "relu", network={"layer_norm": True}), "kernel"),
    "lane-snr-sgd-relu": Case(bits(SNR, SGD, "relu"), "kernel"),
    "lane-perturbed-adam-tanh": Case(bits(PERTURBED, ADAM), "kernel"),
    "mlp-upgd-adam-relu-norm": Case(images(UPGD, ADAM, network={"layer_norm": True}), "kernel"),
    "mlp-perturbed-sgd-relu": Case(images(PERTURBED, SGD), "kernel"),
    "mlp-swr-sgd-relu": Case(images(SWR, SGD), "kernel"),
    "mlp-redo-sgd-tanh": Case(images(REDO, SGD, "tanh"), "kernel"),
    "torch-upgd-sgd-tanh": Case(bits(UPGD, SGD), "torch"),
    "torch-redo-adam-tanh": Case(bits(REDO, ADAM), "torch"),
}


def machine() -> dict[str, str]:
    """What bits depend on: the kind of CPU, and the versions of what computes."""
    libraries = ("numpy", "numba", "torch", "ray", "pybullet")
    return {"cpu": llvmlite.binding.get_host_cpu_name(), **{name: version(name) for name in libraries}}


def key(case: Case) -> str:
    """The key under which a sweep would store the case's runs."""
    return config_key(OnlineConfig.make(case.config), case.engine)


def record(case: Case) -> dict[str, Any]:
    """The config's key, hashes of curves and weights, and means of the curves for machines whose last bits differ."""
    points, state = [], {}
    for point in iterate_online(OnlineConfig.make(case.config), case.seeds, case.engine):
        points.append(point.metrics)
        state = point.checkpoint() if point.index == point.bins - 1 else {}
    curves = {name: np.stack([metrics[name] for metrics in points], axis=1) for name in points[0]}
    found: dict[str, Any] = {"key": key(case)}
    if case.exact:
        found["curves"] = digest(curves)
        found["weights"] = digest(dict(enumerate(sorted(weights_of(state), key=lambda a: a.tobytes()))))
    found["means"] = {name: float(np.float64(np.nanmean(c))) if np.isfinite(c).any() else None for name, c in curves.items()}
    return found


def weights_of(state: dict[str, Any]) -> list[Any]:
    """The arrays of a checkpoint that hold weights; for Slippery Ant all matrices, of whatever."""
    arrays = {name.removeprefix("state/"): np.asarray(array) for name, array in state.items()}
    if "0/tree" in arrays:
        return [array for array in arrays.values() if array.ndim == 2 and array.dtype == np.float32]
    leaves = {name: name.split("/", 1)[-1] for name in arrays}
    kept = [name for name, leaf in leaves.items() if leaf in ("parameters", "weights", "bias") or leaf.startswith("model/")]
    assert kept, sorted(arrays)
    return [arrays[name] for name in kept]


def digest(arrays: dict[Any, Any]) -> str:
    """Of names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()[:20]


def main(patterns: list[str]) -> None:
    """Renews records, all of them on this machine or none."""
    known = json.loads(RECORDS.read_text()) if RECORDS.exists() else {"machine": machine(), "cases": {}}
    if known["machine"] != machine() and patterns != ["*"]:
        sys.exit(f"the records are of another machine: {known['machine']}; renew all of them with '*'")
    for name, case in CASES.items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            known["cases"][name] = record(case)
            sys.stderr.write(f"{name}\n")
    RECORDS.write_text(json.dumps({"machine": machine(), "cases": known["cases"]}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
