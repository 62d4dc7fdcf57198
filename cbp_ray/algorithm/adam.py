"""Adam in which every weight has its own time step (Algorithm 2 of the paper).

Changes to `torch.optim.Adam`:

- `reset_weights` forgets both moments and the time step of some weights; their bias correction starts again.
- Bias correction is per weight from the first reset on. Before it, every update equals `torch.optim.Adam` bit for bit
  (`foreach` or not), because the same operations run in the same order with the same scalars.
- `fused` is a step compiled with Numba for float32 parameters on a CPU, equal to rounding, and not the one of torch.
- `weight_decay` is L2 (added to the gradient), as in `torch.optim.Adam`. No amsgrad, maximize or capturable.

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
      weight_decay: L2 coefficient λ; the gradient becomes g + λ w.
      fused: whether float32 parameters on a CPU are updated in one compiled pass each, which is faster and equal to rounding.
        The state is the same; other parameters, and all of them where Numba is not installed, are updated as without it.

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

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        fused: bool = False,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if isinstance(value, Tensor) or not value >= 0:
                raise InputError(f"Adam: {name} must be a number, 0 or more, got {value}")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"Adam: betas must be two numbers in [0, 1), got {betas}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.fused = fused
        self._prepare()

    def _prepare(self) -> None:
        """Makes what is derived from the state."""
        self._corrections: dict[Any, _Corrections] = {}
        self._compiled = None
        with suppress(ModuleNotFoundError):  # without Numba
            if self.fused:
                from cbp_ray.compiled.adam import CompiledAdam

                self._compiled = CompiledAdam()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "fused": self.fused}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
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
                alike.setdefault((p.dtype, p.device), []).append(p)
                self.state_of(p)["time_step"] += 1
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
        beta1, beta2 = group["betas"]
        states = [self.state[p] for p in params]
        if self._compiled is not None and self._compiled.update(group, params, states):
            return
        grads: Any = [p.grad for p in params]
        if group["weight_decay"] != 0:
            grads = torch._foreach_add(grads, params, alpha=group["weight_decay"])
        exp_avgs = [state["exp_avg"] for state in states]
        exp_avg_sqs = [state["exp_avg_sq"] for state in states]
        torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
        torch._foreach_mul_(exp_avg_sqs, beta2)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)

        denominators = torch._foreach_sqrt(exp_avg_sqs)
        if not any(name in state for state in states for name in RESETS):
            torch._foreach_div_(denominators, [(1 - beta2 ** state["time_step"]) ** 0.5 for state in states])
            torch._foreach_add_(denominators, group["eps"])
            step_sizes = [(group["lr"] / (1 - beta1 ** state["time_step"])) * -1 for state in states]
        else:
            key = *map(id, params), place  # a parameter stays itself when it is moved or cast
            if key not in self._corrections:
                self._corrections[key] = _Corrections(params, states)
            time_steps = [state["time_step"] for state in states]
            corrections1, corrections2 = self._corrections[key].update(time_steps, group["betas"])
            torch._foreach_div_(denominators, corrections2)
            torch._foreach_add_(denominators, group["eps"])
            torch._foreach_mul_(denominators, corrections1)
            step_sizes = [-group["lr"]] * len(params)
        torch._foreach_addcdiv_(params, exp_avgs, denominators, step_sizes)

    @torch.no_grad()
    def reset_weights(self, param: Tensor, dim: int, index: Tensor, run: int | None = None) -> None:
        """Forgets moments and time steps of `param`'s weights at `index` along dimension 0 (rows) or 1 (columns).

        With `run`, `param` is a stack of parameters of several runs, and `dim` and `index` are those of `param[run]`.
        """
        state = self.state.get(param)
        if not state:
            return  # nothing learned yet, so nothing to forget
        for moment in ("exp_avg", "exp_avg_sq"):
            fill(of_run(state[moment], run), dim, index, 0)
        if RESETS[dim] not in state:
            kept = {dim} if run is None else {0, dim + 1}
            shape = [size if d in kept else 1 for d, size in enumerate(param.shape)]
            state[RESETS[dim]] = torch.zeros(shape, dtype=torch.int64)
        fill(of_run(state[RESETS[dim]], run), dim, index.cpu(), state["time_step"])
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

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict` gave. Counters stay exact integers, whatever the parameters' dtype."""
        super().load_state_dict(state_dict)
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(ids, params, strict=True):
            # Torch casts every state tensor to its parameter's dtype, which would round large counters.
            for name in RESETS:
                if name in state_dict["state"].get(i, {}):
                    self.state[p][name] = state_dict["state"][i][name].to(device="cpu", dtype=torch.int64, copy=True)


def of_run(tensor: Tensor, run: int | None) -> Tensor:
    """A run's part of a tensor that has one for each of several runs; without `run`, the tensor itself."""
    return tensor if run is None else tensor[run]


def fill(tensor: Tensor, dim: int, index: Tensor, value: int) -> None:
    """`tensor.index_fill_(dim, index, value)`, for which NumPy needs a fifth of the time."""
    if tensor.is_cpu and tensor.dtype in (torch.float32, torch.float64, torch.int64):
        tensor.numpy()[(*(slice(None),) * dim, index.numpy())] = value
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
