"""Adam in which every weight has its own time step (Algorithm 2 of the paper).

Changes to `torch.optim.Adam`:

- `reset_weights` forgets both moments and the time step of some weights; their bias correction starts again.
- Bias correction is per weight from the first reset on. Before it, every update with `fused=False` equals `torch.optim.Adam`
  bit for bit (`foreach` or not), because the same operations run in the same order with the same scalars.
- `fused` is a step compiled with Numba for float32 matrices and vectors on a CPU, equal to rounding, and not the one of torch.
  It is the default.
- States of `torch.optim.Adam` and `torch.optim.AdamW` can be loaded, and the other way round.
- Neither `capturable` nor `differentiable`: time steps are counted on the host, and weights change in place.

Generate-and-test only ever resets whole rows (a unit's input weights) and whole columns (its output weights). A weight's time
step is therefore `min(steps since its row's reset, steps since its column's reset)`, and since 1 - βᵗ grows with t, so is
its bias correction: min(correction of the row, correction of the column). Two vectors per matrix do for a matrix of
time steps.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from cbp_ray.errors import InputError
from cbp_ray.validation import as_number, truth_value

RESETS = ("row_reset", "column_reset")
"""Optimizer state: the parameter's step count at the last reset of each row and of each column, in a shape that broadcasts
to the parameter's."""


class Adam(Optimizer):
    """Adam with per-weight time steps.

    For a weight with gradient g, in its own t-th step since it was created or reset:

        m ← β₁ m + (1 - β₁) g        m̂ = m / (1 - β₁ᵗ)
        v ← β₂ v + (1 - β₂) g²       v̂ = v / (1 - β₂ᵗ)
        w ← w - α m̂ / (√v̂ + ε)

    Args:
      params: parameters or parameter groups, as for any torch optimizer.
      lr: step size α.
      betas: (β₁, β₂).
      eps: ε.
      weight_decay: L2 coefficient λ; the gradient becomes g + λ w. In `AdamW`, weights are multiplied by 1 - α λ instead.
      amsgrad: whether v̂ is made from the largest v so far (Reddi et al. 2018).
      foreach: accepted, and no matter: parameters are always updated together.
      maximize: whether to ascend instead of descend.
      capturable: must be False.
      differentiable: must be False.
      fused: whether float32 parameters on a CPU are updated in one compiled pass each, which is faster and equal to rounding;
        by default (None) they are. The state is the same. Parameters of more than two dimensions, `amsgrad`, `maximize`, and
        everything where Numba is not installed are updated as with False.

    Example:
      >>> model = torch.nn.Linear(3, 2)
      >>> optimizer = Adam(model.parameters(), lr=1e-3)
      >>> model(torch.ones(1, 3)).sum().backward()
      >>> optimizer.step()
      >>> optimizer.reset_weights(model.weight, dim=0, index=torch.tensor([1]))
      >>> optimizer.time_steps(model.weight)
      tensor([[1, 1, 1],
              [0, 0, 0]])

    References:
      Kingma and Ba (2015); Dohare, Sutton and Mahmood (2022), Algorithm 2.
    """

    decoupled = False
    """Whether weight decay acts on the weights and not on the gradient."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        kind = type(self).__name__
        if isinstance(lr, Tensor) and (lr.numel() != 1 or lr.is_complex()):
            raise InputError(f"{kind}: lr must be one number, got a tensor of shape {list(lr.shape)}")
        for name, value in (("lr", float(lr) if isinstance(lr, Tensor) else lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not 0 <= as_number(value) < math.inf:
                raise InputError(f"{kind}: {name} must be a finite number, 0 or more, got {value}")
        if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(0 <= as_number(beta) < 1 for beta in betas):
            raise InputError(f"{kind}: betas must be two numbers in [0, 1), got {betas}")
        for name, value in (("amsgrad", amsgrad), ("maximize", maximize), ("capturable", capturable)):
            truth_value(f"{kind}: {name}", value)
        truth_value(f"{kind}: differentiable", differentiable)
        if fused is not None:
            truth_value(f"{kind}: fused", fused)
        for name, value, why in (
            ("capturable", capturable, "time steps are counted on the host"),
            ("differentiable", differentiable, "weights change in place"),
        ):
            if value:
                raise InputError(f"{kind}: {name} must be False, because {why}; torch.optim.{kind} has it")
        # Whole numbers may be larger than any float.
        rates = {"lr": lr if isinstance(lr, Tensor) else as_number(lr), "betas": tuple(map(as_number, betas))}
        defaults = {**rates, "eps": as_number(eps), "weight_decay": as_number(weight_decay), "amsgrad": amsgrad}
        try:
            super().__init__(params, {**defaults, "maximize": maximize, "decoupled_weight_decay": self.decoupled})
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InputError(f"{kind}: params must be a model's parameters or groups of them ({error})") from error
        self.fused = fused
        self._prepare()

    def _prepare(self) -> None:
        """Makes what is derived from the state."""
        self._corrections: dict[Any, _Corrections] = {}
        self._compiled = None
        with suppress(ModuleNotFoundError):  # without Numba
            if self.fused is not False:
                from cbp_ray.compiled.adam import CompiledAdam

                self._compiled = CompiledAdam()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "fused": self.fused}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in {"amsgrad": False, "maximize": False, "decoupled_weight_decay": self.decoupled}.items():
                group.setdefault(name, value)  # of a version that had none
        if "fused" in state:
            self._prepare()

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.grad.is_sparse:
                    raise InputError(
                        f"{type(self).__name__}: the gradient of a parameter of shape {list(p.shape)} is sparse; make it dense "
                        "(nn.Embedding(..., sparse=False)), or give the parameter to torch.optim.SparseAdam"
                    )
                alike.setdefault((p.dtype, p.device), []).append(p)
                state = self.state_of(p)
                if group["amsgrad"] and "max_exp_avg_sq" not in state:
                    state["max_exp_avg_sq"] = torch.zeros_like(p)
                state["time_step"] += 1
            for key, params in alike.items():
                self._update(group, params, key)
        return loss

    def state_of(self, p: Tensor) -> dict[str, Any]:
        """The state of a parameter, made if there is none yet."""
        if not self.state[p]:
            # In the parameter's own memory format.
            self.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p), "time_step": 0}
        state: dict[str, Any] = self.state[p]
        return state

    def _update(self, group: dict[str, Any], params: list[Tensor], place: tuple[torch.dtype, torch.device]) -> None:
        lr = float(group["lr"])
        if group["decoupled_weight_decay"] and group["weight_decay"] != 0:
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            group = {**group, "weight_decay": 0}
        if self._compiled is not None and not group["amsgrad"] and not group["maximize"]:
            flat = [p for p in params if p.ndim <= 2]
            if flat and self._compiled.update({**group, "lr": lr}, flat, [self.state[p] for p in flat]):
                params = [p for p in params if p.ndim > 2]
        if params:
            self._update_with_torch(group, lr, params, place)

    def _update_with_torch(
        self, group: dict[str, Any], lr: float, params: list[Tensor], place: tuple[torch.dtype, torch.device]
    ) -> None:
        beta1, beta2 = group["betas"]
        states = [self.state[p] for p in params]
        grads: Any = [p.grad for p in params]
        if group["maximize"]:
            grads = torch._foreach_neg(grads)
        if group["weight_decay"] != 0:
            grads = torch._foreach_add(grads, params, alpha=group["weight_decay"])
        exp_avgs = [state["exp_avg"] for state in states]
        exp_avg_sqs = [state["exp_avg_sq"] for state in states]
        torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
        torch._foreach_mul_(exp_avg_sqs, beta2)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)

        if group["amsgrad"]:
            largest = [state["max_exp_avg_sq"] for state in states]
            torch._foreach_maximum_(largest, exp_avg_sqs)
            exp_avg_sqs = largest
        denominators = torch._foreach_sqrt(exp_avg_sqs)
        if not any(name in state for state in states for name in RESETS):
            torch._foreach_div_(denominators, [(1 - beta2 ** state["time_step"]) ** 0.5 for state in states])
            torch._foreach_add_(denominators, group["eps"])
            step_sizes = [(lr / (1 - beta1 ** state["time_step"])) * -1 for state in states]
        else:
            key = *map(id, params), place  # a parameter stays itself when it is moved or cast
            if key not in self._corrections:
                self._corrections[key] = _Corrections(params, states)
            time_steps = [state["time_step"] for state in states]
            corrections1, corrections2 = self._corrections[key].update(time_steps, group["betas"])
            torch._foreach_div_(denominators, corrections2)
            torch._foreach_add_(denominators, group["eps"])
            torch._foreach_mul_(denominators, corrections1)
            step_sizes = [-lr] * len(params)
        torch._foreach_addcdiv_(params, exp_avgs, denominators, step_sizes)

    @torch.no_grad()
    def reset_weights(self, param: Tensor, dim: int, index: Tensor, run: int | None = None) -> None:
        """Forgets moments and time steps of `param`'s weights at `index` along dimension 0 (rows) or 1 (columns).

        A parameter may have another dimension in place of 1, if it is always the same.
        With `run`, `param` is a stack of parameters of several runs, and `dim` and `index` are those of `param[run]`.
        """
        state = self.state.get(param)
        if not state:
            return  # nothing learned yet, so nothing to forget
        for moment in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            if moment in state:
                fill(of_run(state[moment], run), dim, index, 0)
        name = RESETS[min(dim, 1)]
        if name not in state:
            kept = {dim} if run is None else {0, dim + 1}
            shape = [size if d in kept else 1 for d, size in enumerate(param.shape)]
            state[name] = torch.zeros(shape, dtype=torch.int64)
        fill(of_run(state[name], run), dim, index.cpu(), state["time_step"])
        self.read_resets_again()

    def read_resets_again(self) -> None:
        """Must be called by whoever writes the steps of resets into `state`."""
        self._corrections.clear()
        if self._compiled is not None:
            self._compiled.forget_resets()

    def time_steps(self, param: Tensor) -> Tensor:
        """How many updates each weight of `param` has had since it was created or last reset."""
        state: dict[str, Any] = self.state.get(param) or {"time_step": 0}
        latest = torch.zeros(param.shape, dtype=torch.int64)
        for name in RESETS:
            if name in state:
                latest = torch.maximum(latest, state[name])
        steps: int = state["time_step"]
        return steps - latest

    def state_dict(self) -> dict[str, Any]:
        """The state, which `torch.optim.Adam` and `torch.optim.AdamW` can load as well; they know no resets of weights."""
        state_dict = super().state_dict()
        state = {i: {**own, "step": torch.tensor(float(own["time_step"]))} for i, own in state_dict["state"].items() if own}
        return {**state_dict, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict` gave, ours or that of `torch.optim.Adam` or `torch.optim.AdamW`.

        Counters stay exact integers, whatever the parameters' dtype.
        """
        super().load_state_dict(state_dict)
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(ids, params, strict=True):
            saved = state_dict["state"].get(i, {})
            # Torch casts every state tensor to its parameter's dtype, which would round large counters.
            for name in RESETS:
                if name in saved:
                    self.state[p][name] = saved[name].to(device="cpu", dtype=torch.int64, copy=True)
            step = self.state[p].pop("step", None)
            if step is not None:
                step = float(saved["step"])
                ours = saved.get("time_step")
                # Torch counts on in `step` alone. It is float32, in which large counters are rounded.
                exact = ours is not None and float(torch.tensor(float(ours))) == step
                self.state[p]["time_step"] = int(ours) if exact else int(step)
        self.read_resets_again()


class AdamW(Adam):
    """Adam with per-weight time steps and decoupled weight decay: w ← (1 - α λ) w before every update.

    Args:
      params: parameters or parameter groups, as for any torch optimizer.
      lr: step size α.
      betas: (β₁, β₂).
      eps: ε.
      weight_decay: λ.
      amsgrad: as in `Adam`, like all other arguments.

    Example:
      >>> model = torch.nn.Linear(3, 2)
      >>> optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    References:
      Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.
    """

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **others: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **others)


def of_run(tensor: Tensor, run: int | None) -> Tensor:
    """A run's part of a tensor that has one for each of several runs; without `run`, the tensor itself."""
    return tensor if run is None else tensor[run]


def fill(tensor: Tensor, dim: int, index: Tensor, value: int) -> None:
    """`tensor.index_fill_(dim, index, value)`, for which NumPy needs a fifth of the time."""
    if tensor.is_cpu and tensor.dtype in (torch.float32, torch.float64, torch.int64):
        at: Any = (*(slice(None),) * dim, index.numpy())
        tensor.numpy()[at] = value
    else:
        tensor.index_fill_(dim, index, value)


class _Corrections:
    """1 - β₁ᵗ and √(1 - β₂ᵗ) of every weight of some parameters, in shapes that broadcast to the parameters'.

    Made again after a reset and brought up to date before every update: the reset steps of all rows and columns stand end to
    end, on the host, so that one exponential serves all of them, and memory and views are kept. All parameters have one dtype
    and are on one device.
    """

    def __init__(self, params: list[Tensor], states: list[dict[str, Any]]) -> None:
        # A parameter without a reset has one time step for all its weights.
        single = torch.zeros((), dtype=torch.int64)
        vectors = [[s[name] for name in RESETS if name in s] or [single] for s in states]
        self.resets = np.concatenate([vector.numpy().ravel() for of_param in vectors for vector in of_param])
        self.lengths = [sum(vector.numel() for vector in of_param) for of_param in vectors]
        self.flat = params[0].detach().new_empty(2, len(self.resets))
        self.matrices: list[tuple[Tensor, Tensor, Tensor]] = []
        both, end = [], 0
        for of_param in vectors:
            parts = []
            for vector in of_param:
                start, end = end, end + vector.numel()
                parts.append(self.flat[:, start:end].view(2, *vector.shape))
            if len(parts) == 2:
                self.matrices.append((parts[0], parts[1], torch.minimum(*parts)))
                parts = [self.matrices[-1][2]]
            both.append(parts[0])
        self.first, self.second = [pair[0] for pair in both], [pair[1] for pair in both]

    def update(self, time_steps: list[int], betas: tuple[float, float]) -> tuple[list[Tensor], list[Tensor]]:
        """The two corrections of all parameters, each at its own time step."""
        same = min(time_steps) == max(time_steps)
        ages = (time_steps[0] if same else np.repeat(time_steps, self.lengths)) - self.resets
        corrections = np.empty((2, len(ages)))
        for correction, beta in zip(corrections, betas, strict=True):
            np.exp(ages * (math.log(beta) if beta else -math.inf), out=correction)
        np.subtract(1, corrections, out=corrections)
        np.sqrt(corrections[1], out=corrections[1])
        self.flat.copy_(torch.from_numpy(corrections))
        for rows, columns, matrix in self.matrices:
            torch.minimum(rows, columns, out=matrix)
        return self.first, self.second
