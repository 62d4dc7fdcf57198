"""The list of the paper's figures. Plain data, so that listing them needs neither torch nor Ray.

Figures 1, 2 and 5 are drawings, not results, and have no entry. Numbers are those printed in the paper.
"""

from dataclasses import dataclass

from cbp_ray.errors import InputError

BIT_FLIPPING = "bit-flipping"
PERMUTED_MNIST = "permuted-mnist"
SLIPPERY_ANT = "slippery-ant"


@dataclass(frozen=True)
class Figure:
    """One figure of the paper."""

    key: str
    """The name on the command line: `fig3`, ..., `fig17a`, `fig17b`, ..., `fig20`."""
    problem: str
    """`bit-flipping`, `permuted-mnist` or `slippery-ant`."""
    title: str
    """What the figure is about, in a few words."""
    what: str
    """The algorithms, networks and optimizers compared, and what is drawn."""
    grid: str
    """The settings swept, with the number and the length of the runs where the paper gives them."""
    claim: str
    """What the paper concludes from the figure, as something to check."""
    sweep: str | None = None
    """Its sweep file below `tune_configs/`; None if `cbp-ray reproduce` cannot run it in this version."""

    @property
    def available(self) -> bool:
        """Whether `cbp-ray reproduce` can run it."""
        return self.sweep is not None


_ALL = (
    Figure(
        key="fig3",
        problem=BIT_FLIPPING,
        title="Backprop with SGD: tanh and ReLU",
        what="BP with SGD, tanh and ReLU, with the linear tracker as baseline: online squared error, bins of 20,000",
        grid="step size 0.01, 0.003, 0.001; 100 runs of 1M examples",
        claim="the error rises after its minimum for every activation; ReLU ends worse than the linear tracker",
        sweep="bit_flipping/fig3.yaml",
    ),
    Figure(
        key="fig4",
        problem=PERMUTED_MNIST,
        title="Backprop on Permuted MNIST",
        what="BP with SGD, three hidden ReLU layers of 2000: online accuracy, bins of 60,000",
        grid="step size 0.01, 0.003, 0.001; 10 runs of 48M examples",
        claim="the accuracy falls with time for every step size",
        sweep="permuted_mnist/fig4.yaml",
    ),
    Figure(
        key="fig6",
        problem=BIT_FLIPPING,
        title="Continual Backprop with SGD: tanh and ReLU",
        what="BP, BP+L2, BP+OnlineNorm and CBP with SGD, step size 0.01: learning curves and parameter sensitivity",
        grid="sweeps of replacement rate and weight decay, 16 OnlineNorm pairs; 100 runs of 1M examples",
        claim="only CBP does not rise in any case; CBP is less sensitive than L2; CBP beats L2 on ReLU",
        sweep="bit_flipping/fig6.yaml",
    ),
    Figure(
        key="fig7",
        problem=PERMUTED_MNIST,
        title="Continual Backprop on Permuted MNIST",
        what="BP, BP+L2, BP+OnlineNorm and CBP with SGD, step size 0.003: online accuracy, bins of 60,000",
        grid="replacement rate 1e-4, 1e-5, 1e-6; weight decay 1e-3 to 1e-6; 16 OnlineNorm pairs; 10 runs of 48M examples",
        claim="only CBP does not fall",
        sweep="permuted_mnist/fig7.yaml",
    ),
    Figure(
        key="fig8",
        problem=PERMUTED_MNIST,
        title="Weight magnitude on Permuted MNIST",
        what="mean magnitude of the last layer's weights in the runs of fig7",
        grid="as fig7",
        claim="the weights keep growing for BP and OnlineNorm; L2 and CBP stop the growth",
        sweep="permuted_mnist/fig8.yaml",
    ),
    Figure(
        key="fig9",
        problem=SLIPPERY_ANT,
        title="Continual PPO on Slippery Ant",
        what="PPO, PPO+L2 and Continual PPO: episodic return, bins of 40,000 time-steps",
        grid="6 pairs of replacement rate and maturity threshold, weight decay 1e-3 to 1e-6 (appendix D)",
        claim="late in learning, Continual PPO is better than PPO+L2, and PPO+L2 better than PPO",
    ),
    Figure(
        key="fig10",
        problem=BIT_FLIPPING,
        title="Backprop with SGD: the other activations",
        what="BP with SGD, the remaining activations: online squared error, bins of 20,000",
        grid="step size 0.01, 0.003, 0.001; 100 runs of 1M examples",
        claim="the error rises after its minimum for every activation",
        sweep="bit_flipping/fig10.yaml",
    ),
    Figure(
        key="fig11",
        problem=BIT_FLIPPING,
        title="Backprop with SGD, small step, longer",
        what="BP with SGD, step size 0.001, six activations",
        grid="100 runs of 5M examples",
        claim="the error rises, or stays above that of larger step sizes",
        sweep="bit_flipping/fig11.yaml",
    ),
    Figure(
        key="fig12",
        problem=BIT_FLIPPING,
        title="Backprop with Adam",
        what="BP with Adam, six activations: online squared error, bins of 20,000",
        grid="step size 0.01, 0.003, 0.001; 100 runs of 1M examples",
        claim="the error rises after its minimum for every activation",
        sweep="bit_flipping/fig12.yaml",
    ),
    Figure(
        key="fig13",
        problem=BIT_FLIPPING,
        title="Backprop with Adam, small step, longer",
        what="BP with Adam, step size 0.001, six activations",
        grid="100 runs of 5M examples",
        claim="the error rises for every activation",
        sweep="bit_flipping/fig13.yaml",
    ),
    Figure(
        key="fig14",
        problem=BIT_FLIPPING,
        title="Continual Backprop with SGD: the other activations",
        what="as fig6 for the remaining activations",
        grid="as fig6",
        claim="CBP and L2 are better than BP for almost all settings; CBP is less sensitive than L2",
        sweep="bit_flipping/fig14.yaml",
    ),
    Figure(
        key="fig15",
        problem=BIT_FLIPPING,
        title="Continual Backprop with Adam",
        what="BP, BP+L2 and CBP with Adam, step size 0.01, six activations: learning curves",
        grid="the best replacement rate and weight decay of fig16, per activation",
        claim="CBP is better than or close to L2, and both are better than BP",
        sweep="bit_flipping/fig15.yaml",
    ),
    Figure(
        key="fig16",
        problem=BIT_FLIPPING,
        title="Continual Backprop with Adam: sensitivity",
        what="BP+L2 and CBP with Adam, step size 0.01, six activations: parameter sensitivity",
        grid="sweeps of replacement rate and weight decay; 100 runs of 1M examples",
        claim="CBP and L2 are better than BP for most settings",
        sweep="bit_flipping/fig16.yaml",
    ),
    Figure(
        key="fig17a",
        problem=BIT_FLIPPING,
        title="Six utilities on Bit-Flipping",
        what="CBP with six utility measures, tanh, Adam, step size 0.01",
        grid="sweep of the replacement rate",
        claim="the overall utility is best",
        sweep="bit_flipping/fig17a.yaml",
    ),
    Figure(
        key="fig17b",
        problem=SLIPPERY_ANT,
        title="Two utilities on Slippery Ant",
        what="Continual PPO with the overall and the mean-corrected contribution utility",
        grid="the settings of fig9",
        claim="the overall utility is better than the mean-corrected contribution; both are better than PPO",
    ),
    Figure(
        key="fig18",
        problem=PERMUTED_MNIST,
        title="Speed of change on Permuted MNIST",
        what="BP with SGD, step size 0.01, three hidden ReLU layers of 2000: online accuracy, bins of 1M",
        grid="a new permutation every 10k, 100k, 1M examples; 10 runs of 48M examples",
        claim="the faster the change, the faster the decay",
        sweep="permuted_mnist/fig18.yaml",
    ),
    Figure(
        key="fig19",
        problem=BIT_FLIPPING,
        title="Saturation and gradients",
        what="fraction of saturated units (|h| > 0.9) and magnitude of the input gradient, tanh; algorithms of fig6",
        grid="the best settings of fig6",
        claim="with BP nearly 90% of the units saturate and the gradient shrinks",
        sweep="bit_flipping/fig19.yaml",
    ),
    Figure(
        key="fig20",
        problem=PERMUTED_MNIST,
        title="Network width on Permuted MNIST",
        what="BP with SGD, step size 0.003, three hidden ReLU layers: online accuracy, bins of 60,000",
        grid="width 100 and 1000; 10 runs of 48M examples",
        claim="the smaller network decays faster",
        sweep="permuted_mnist/fig20.yaml",
    ),
)

FIGURES: dict[str, Figure] = {figure.key: figure for figure in _ALL}
"""Every figure by its key, in the order of the paper."""

GROUPS: dict[str, list[Figure]] = {
    **{problem: [f for f in _ALL if f.problem == problem] for problem in (BIT_FLIPPING, PERMUTED_MNIST, SLIPPERY_ANT)},
    "all": list(_ALL),
}
"""What else may be asked for: all figures of a problem, or all there are."""


def chosen(name: str) -> list[Figure]:
    """The figures behind a key of `FIGURES` or `GROUPS`.

    Raises:
      InputError: if none of them can be reproduced in this version.
    """
    figures = GROUPS[name] if name in GROUPS else [FIGURES[name]]
    available = [figure for figure in figures if figure.available]
    if not available:
        built = ", ".join(figure.key for figure in _ALL if figure.available)
        raise InputError(f"FIG: must be one that is built in this version, got {name!r}; use one of {built}")
    return available
