"""The gains of Kaiming's initial distribution (section 3 of the paper), for engines with and without torch."""

import math

GAINS = {
    "linear": 1.0,
    "tanh": 5 / 3,
    "sigmoid": 1.0,
    "relu": math.sqrt(2),
    "leaky_relu": math.sqrt(2 / (1 + 0.01**2)),
    "elu": math.sqrt(2),
    "swish": math.sqrt(2),
}
"""ELU and Swish as in their original works; the output layer is linear."""
