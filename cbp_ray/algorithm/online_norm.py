"""Online Normalization (Chiley et al. 2019), the streaming counterpart of batch normalization."""

from typing import Any

import torch
from torch import Tensor, nn

from cbp_ray.activations import NORM_EPSILON
from cbp_ray.errors import InputError
from cbp_ray.validation import in_unit_interval, not_negative, truth_value, whole_number

MOST_FEATURES = 2**31


class OnlineNorm(nn.Module):
    """Normalizes each feature by streaming statistics, and keeps the gradients orthogonal by a control process.

    Every example is one time step. With the statistics *before* the example,

        y = (x - μ) / √(σ² + ε)
        σ² ← α_f σ² + α_f (1 - α_f) (x - μ)²        μ ← α_f μ + (1 - α_f) x

    and backwards, for the gradient g of y and the accumulated errors v and u,

        g ← g - (1 - α_b) v y        v ← v + g y
        g ← g / √(σ² + ε)
        g ← g - (1 - α_b) u          u ← u + g

    followed, in the forward direction, by a learned scale and bias. For inputs with positions, [N, C, H, W], one example is
    one time step with its positions' mean and variance, as in the original. The examples of a mini-batch are taken one after
    the other. In evaluation mode the statistics are used and not changed.

    Args:
      num_features: C, the size of dimension 1.
      alpha_forward: α_f.
      alpha_backward: α_b.
      eps: ε.
      affine: whether there are a learned scale and bias.

    References:
      Chiley et al., Online Normalization for Training Neural Networks, NeurIPS 2019, equations 8 and 10-12.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    mean: Tensor
    variance: Tensor
    control_v: Tensor
    control_u: Tensor

    def __init__(
        self,
        num_features: int,
        alpha_forward: float = 0.999,
        alpha_backward: float = 0.99,
        eps: float = NORM_EPSILON,
        affine: bool = True,
    ) -> None:
        super().__init__()
        self.num_features = num_features = whole_number("OnlineNorm: num_features", num_features, least=1, below=MOST_FEATURES)
        self.alpha_forward = in_unit_interval("OnlineNorm: alpha_forward", alpha_forward)
        self.alpha_backward = in_unit_interval("OnlineNorm: alpha_backward", alpha_backward)
        self.eps = not_negative("OnlineNorm: eps", eps)
        truth_value("OnlineNorm: affine", affine)
        self.register_parameter("weight", nn.Parameter(torch.ones(num_features)) if affine else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(num_features)) if affine else None)
        for name, value in self.fresh_statistics().items():
            self.register_buffer(name, torch.full((num_features,), value))

    @staticmethod
    def fresh_statistics() -> dict[str, float]:
        """The buffers and their value in a feature that has seen nothing."""
        return {"mean": 0.0, "variance": 1.0, "control_v": 0.0, "control_u": 0.0}

    def extra_repr(self) -> str:
        return f"{self.num_features}, alpha_forward={self.alpha_forward}, alpha_backward={self.alpha_backward}"

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.num_features or not x.numel():
            raise InputError(f"OnlineNorm: must get [N, {self.num_features}, ...], got {list(x.shape)}; see num_features")
        per_feature = (1, -1, *[1] * (x.ndim - 2))
        if self.training:
            y = _Normalize.apply(x, self)  # type: ignore[no-untyped-call]
        else:
            y = (x - self.mean.view(per_feature)) / (self.variance + self.eps).sqrt().view(per_feature)
        if self.weight is None or self.bias is None:
            return y  # type: ignore[no-any-return]
        out: Tensor = y * self.weight.view(per_feature) + self.bias.view(per_feature)
        return out


class _Normalize(torch.autograd.Function):
    """The two recursions; `norm`'s buffers are their state."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: OnlineNorm) -> Tensor:
        a = norm.alpha_forward
        features = x.flatten(2) if x.ndim > 2 else x.unsqueeze(2)  # [N, C, positions]
        # A new tensor per call: an earlier forward's graph may still hold the old one.
        mean, variance = norm.mean, norm.variance
        ys, sigmas = [], []
        for example in features.to(mean.dtype).unbind(0):
            sigma = (variance + norm.eps).sqrt()
            deviation = example - mean[:, None]
            ys.append(deviation / sigma[:, None])
            sigmas.append(sigma)
            shift = deviation.mean(1)
            within = (deviation - shift[:, None]).square().mean(1) if example.shape[1] > 1 else torch.zeros_like(shift)
            variance = a * variance + (1 - a) * within + a * (1 - a) * shift.square()
            mean = a * mean + (1 - a) * example.mean(1)
        norm.mean.copy_(mean)
        norm.variance.copy_(variance)
        y = torch.stack(ys)
        ctx.save_for_backward(y, torch.stack(sigmas))
        ctx.norm, ctx.dtype = norm, x.dtype
        return y.view(x.shape).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        norm, (y, sigmas) = ctx.norm, ctx.saved_tensors
        (gradient,) = gradients
        rate = 1 - norm.alpha_backward
        u, v = norm.control_u, norm.control_v
        out = []
        for g, y_t, sigma in zip(gradient.to(y.dtype).reshape(y.shape), y, sigmas, strict=True):
            g = g - rate * v[:, None] * y_t
            v = v + (g * y_t).mean(1)
            g = g / sigma[:, None]
            g = g - rate * u[:, None]
            u = u + g.mean(1)
            out.append(g)
        norm.control_u.copy_(u)
        norm.control_v.copy_(v)
        return torch.stack(out).reshape(gradient.shape).to(ctx.dtype), None
