"""L2-Init: regularisation towards the initial weights instead of towards zero."""

from cbp_ray.algorithm.weights.pull import Pull


class L2Init(Pull):
    """Adds λ (θ - θ₀) to the gradient, where θ₀ are the weights that the model has now.

    With SGD: θ ← (1 - αλ) θ + αλ θ₀ - α g, as in the paper, whose λ‖θ - θ₀‖² has its factor 2 in λ.

    Args:
      model: a network, at its initial weights.
      optimizer: the optimizer, or several, that hold its parameters.
      strength: λ.

    Example:
      >>> import torch
      >>> from torch import nn
      >>> model = nn.Linear(3, 2)
      >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
      >>> method = L2Init(model, optimizer, strength=1e-2)
      >>> model(torch.ones(1, 3)).sum().backward()
      >>> optimizer.step()
      >>> method.step().step
      1

    References:
      Kumar, Marklund and Van Roy, Maintaining Plasticity in Continual Learning via Regenerative Regularization, 2023.
    """
