"""Backprop loses plasticity on Bit-Flipping, Continual Backprop does not: 100 runs each over 1M examples, in seconds."""

import matplotlib.pyplot as plt

from cbp_ray import run_online

for algorithm in ({"name": "bp"}, {"name": "cbp", "replacement_rate": 1e-4}):
    curves = run_online({"algorithm": algorithm, "optimizer": {"name": "sgd", "step_size": 0.01}}, seeds=range(100))
    mean, error = curves.mean(), curves.standard_error()
    plt.plot(curves.examples, mean, label=algorithm["name"])
    plt.fill_between(curves.examples, mean - error, mean + error, alpha=0.3)
plt.xlabel("examples"), plt.ylabel("squared error"), plt.legend()
plt.savefig("bit_flipping.png")
