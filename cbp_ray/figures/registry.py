"""The list of the paper's figures. Plain data, so that listing them needs neither torch nor Ray.

Figures 1, 2 and 5 are drawings, not results, and have no entry. Numbers are those printed in the paper.
"""

from dataclasses import dataclass

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
    available: bool = False
    """Whether `cbp-ray reproduce` can run it in this version."""


_ALL = (
    Figure(
        key="fig3",
        problem=BIT_FLIPPING,
        title="Backprop with SGD: tanh and ReLU",
        what="BP with SGD, tanh and ReLU, with the linear tracker as baseline: online squared error, bins of 20,000",
        grid="step size 0.01, 0.003, 0.001; 100 runs of 1M examples",
        claim="the error rises after its minimum for every activation; ReLU ends worse than the linear tracker",
    ),
    Figure(
        key="fig4",
        problem=PERMUTED_MNIST,
        title="Backprop on Permuted MNIST",
        what="BP with SGD, three hidden ReLU layers of 2000: online accuracy, bins of 60,000",
        grid="step size 0.01, 0.003, 0.001",
        claim="the accuracy falls with time for every step size",
    ),
    Figure(
        key="fig6",
        problem=BIT_FLIPPING,
        title="Continual Backprop with SGD: tanh and ReLU",
        what="BP, BP+L2, BP+OnlineNorm and CBP with SGD, step size 0.01: learning curves and parameter sensitivity",
        grid="sweeps of replacement rate and weight decay, 16 OnlineNorm pairs; 100 runs of 1M examples",
        claim="only CBP does not rise in any case; CBP is less sensitive than L2; CBP beats L2 on ReLU",
    ),
    Figure(
        key="fig7",
        problem=PERMUTED_MNIST,
        title="Continual Backprop on Permuted MNIST",
        what="BP, BP+L2, BP+OnlineNorm and CBP with SGD, step size 0.003: online accuracy, bins of 60,000",
        grid="replacement rate 1e-4, 1e-5, 1e-6; weight decay 1e-3 to 1e-6; 16 OnlineNorm pairs; 10 runs",
        claim="only CBP does not fall",
    ),
    Figure(
        key="fig8",
        problem=PERMUTED_MNIST,
        title="Weight magnitude on Permuted MNIST",
        what="mean magnitude of the last layer's weights in the runs of fig7",
        grid="as fig7",
        claim="the weights keep growing for BP and OnlineNorm; L2 and CBP stop the growth",
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
    ),
    Figure(
        key="fig11",
        problem=BIT_FLIPPING,
        title="Backprop with SGD, small step, longer",
        what="BP with SGD, step size 0.001, six activations",
        grid="100 runs of 5M examples",
        claim="the error rises, or stays above that of larger step sizes",
    ),
    Figure(
        key="fig12",
        problem=BIT_FLIPPING,
        title="Backprop with Adam",
        what="BP with Adam, six activations: online squared error, bins of 20,000",
        grid="step size 0.01, 0.003, 0.001; 100 runs of 1M examples",
        claim="the error rises after its minimum for every activation",
    ),
    Figure(
        key="fig13",
        problem=BIT_FLIPPING,
        title="Backprop with Adam, small step, longer",
        what="BP with Adam, step size 0.001, six activations",
        grid="100 runs of 5M examples",
        claim="the error rises for every activation",
    ),
    Figure(
        key="fig14",
        problem=BIT_FLIPPING,
        title="Continual Backprop with SGD: the other activations",
        what="as fig6 for the remaining activations",
        grid="as fig6",
        claim="CBP and L2 are better than BP for almost all settings; CBP is less sensitive than L2",
    ),
    Figure(
        key="fig15",
        problem=BIT_FLIPPING,
        title="Continual Backprop with Adam",
        what="BP, BP+L2 and CBP with Adam, step size 0.01, six activations: learning curves",
        grid="the best replacement rate and weight decay of fig16, per activation",
        claim="CBP is better than or close to L2, and both are better than BP",
    ),
    Figure(
        key="fig16",
        problem=BIT_FLIPPING,
        title="Continual Backprop with Adam: sensitivity",
        what="BP+L2 and CBP with Adam, step size 0.01, six activations: parameter sensitivity",
        grid="sweeps of replacement rate and weight decay; 100 runs of 1M examples",
        claim="CBP and L2 are better than BP for most settings",
    ),
    Figure(
        key="fig17a",
        problem=BIT_FLIPPING,
        title="Six utilities on Bit-Flipping",
        what="CBP with six utility measures, tanh, Adam, step size 0.01",
        grid="sweep of the replacement rate",
        claim="the overall utility is best",
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
        grid="a new permutation every 10k to 1M examples",
        claim="the faster the change, the faster the decay",
    ),
    Figure(
        key="fig19",
        problem=BIT_FLIPPING,
        title="Saturation and gradients",
        what="fraction of saturated units (|h| > 0.9) and magnitude of the input gradient, tanh; algorithms of fig6",
        grid="the best settings of fig6",
        claim="with BP nearly 90% of the units saturate and the gradient shrinks",
    ),
    Figure(
        key="fig20",
        problem=PERMUTED_MNIST,
        title="Network width on Permuted MNIST",
        what="BP with SGD, step size 0.003, three hidden ReLU layers: online accuracy, bins of 60,000",
        grid="width 100 and 1000",
        claim="the smaller network decays faster",
    ),
)

FIGURES: dict[str, Figure] = {figure.key: figure for figure in _ALL}
"""Every figure by its key, in the order of the paper."""
