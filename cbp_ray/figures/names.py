"""What things are called in print."""

NAMES = {
    "bp": "BP",
    "l2": "BP+L2",
    "online_norm": "BP+OnlineNorm",
    "cbp": "CBP",
    "linear": "linear",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "relu": "ReLU",
    "leaky_relu": "leaky ReLU",
    "elu": "ELU",
    "swish": "swish",
}
"""Algorithms and activations."""
