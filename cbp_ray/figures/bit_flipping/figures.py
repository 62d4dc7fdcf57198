"""The Bit-Flipping figures, and what the paper says of them, sentence by sentence.

Definitions shared by the claims; `comparisons.py` and `statistics.py` compute them:

- *total error*: squared error per example, averaged over a whole run, then over runs;
- *best*: the setting of least total error, chosen per algorithm and activation;
- *late error*: average over the last 200,000 examples;
- *adjusted*: divided by the error of the linear tracker (at its best step size) on the same examples, which takes out how
  hard the data happened to be: that varies slowly within a run and hits all algorithms alike;
- *low point*: average over the 100,000 successive examples where the adjusted error is lowest, before the late ones, chosen
  on one half of the runs and read off on the other;
- *rises*: the adjusted late error is more than 5% above the adjusted low point; *stable*: it is less than 5% above.

These definitions were fixed before any run of the figures. The adjustment came from a pilot of 32 runs with other seeds, in
which the variation of the data alone made late error and low point differ by some 10%.
"""

from dataclasses import replace
from functools import partial

from cbp_ray.figures.bit_flipping import comparisons as compare
from cbp_ray.figures.bit_flipping.comparisons import ALL, LARGER_STEPS, MAIN, OTHERS, STEPS
from cbp_ray.figures.claims import Claim
from cbp_ray.figures.figure import Figure, drawn_by

DEGRADES = "{}. Value: adjusted late error / low point - 1.05."
RISES = DEGRADES.format("BP rises for every {}")
STABLE = "At its best setting, {} is stable. Value: 1.05 - adjusted late error / low point."
LOWER = "Total error at the best settings, {}. Value: 1 - ratio of the two."
SHARE = "Of the swept values, more than {} have a lower total error than BP. Value: fraction - {}."
UTILITY = "Total error at the best replacement rate of each utility, {}. Value: 1 - ratio."
SENSITIVITY = (
    "Mean of total error / least total error - 1 over the other settings within a factor of 10 of the best one, "
    "larger for L2 than for CBP. Value: the difference."
)

_figure = partial(Figure, problem="bit-flipping", numbers=compare.numbers)
_drawing = partial(drawn_by, "cbp_ray.figures.bit_flipping.drawings")

FIGURES = (
    _figure(
        key="fig3",
        title="Backprop with SGD: tanh and ReLU",
        what="BP with SGD, tanh and ReLU, with the linear tracker as baseline: online squared error, bins of 20,000",
        grid="step size 0.01, 0.003, 0.001; 100 runs of 1M examples",
        claim="the error rises after its minimum for every activation; ReLU ends worse than the linear tracker",
        drawing=_drawing("draw_step_sizes", activations=MAIN, columns=2),
        claims=(
            Claim(
                "fig3.rises",
                "Surprisingly, after performing well initially, the error goes up for all step-sizes and activation functions.",
                RISES.format("step size, tanh and ReLU"),
                compare.backprop_rises(MAIN, STEPS),
            ),
            Claim(
                "fig3.relu-worse-than-linear",
                "For Relu, its performance gets even worse than the linear learner.",
                "Late error of BP with ReLU above that of the linear tracker, for every step size. Value: the difference.",
                compare.worse_than_linear,
            ),
        ),
    ),
    _figure(
        key="fig6",
        title="Continual Backprop with SGD: tanh and ReLU",
        what="BP, BP+L2, BP+OnlineNorm and CBP with SGD, step size 0.01: learning curves and parameter sensitivity",
        grid="sweeps of replacement rate and weight decay, 16 OnlineNorm pairs; 100 runs of 1M examples",
        claim="only CBP does not rise in any case; CBP is less sensitive than L2; CBP beats L2 on ReLU",
        drawing=_drawing("draw_curves_and_sensitivity", activations=MAIN),
        claims=(
            Claim(
                "fig6.better-than-bp",
                "All three algorithms: CBP, BP+L2, and BP+OnlineNorm, perform significantly better than BP.",
                LOWER.format("of each of the three below that of BP, tanh and ReLU"),
                compare.together(*(compare.better(name, "bp", MAIN) for name in ("cbp", "l2", "online_norm"))),
            ),
            Claim(
                "fig6.cbp-stable",
                "Only CBP has a non-increasing error rate in all cases.",
                STABLE.format("CBP with tanh and with ReLU"),
                compare.stability(["cbp"], MAIN, stable=True),
            ),
            Claim(
                "fig6.online-norm-degrades",
                "BP+OnlineNorm is not stable for any of the activations as its performance degrades over time.",
                DEGRADES.format("At its best setting, BP+OnlineNorm rises with tanh and with ReLU"),
                compare.stability(["online_norm"], MAIN, stable=False),
            ),
            Claim(
                "fig6.l2-stable-tanh",
                "BP+L2 regularization is stable for the tanh network ...",
                STABLE.format("BP+L2 with tanh"),
                compare.stability(["l2"], ["tanh"], stable=True),
            ),
            Claim(
                "fig6.l2-degrades-relu",
                "... but not the ReLU network.",
                DEGRADES.format("At its best setting, BP+L2 rises with ReLU"),
                compare.stability(["l2"], ["relu"], stable=False),
            ),
            Claim(
                "fig6.most-values",
                "CBP and BP+L2 perform better than BP for most values of replacement-rate and weight-decay.",
                SHARE.format("half", "1/2"),
                compare.better_for_a_share(compare.MOST, ["cbp", "l2"], MAIN),
            ),
            Claim(
                "fig6.sensitivity",
                "CBP is much less sensitive to the parameter values than L2.",
                SENSITIVITY,
                compare.less_sensitive(MAIN),
            ),
            Claim(
                "fig6.cbp-beats-l2-relu",
                "For ReLU, CBP significantly outperformed BP+L2.",
                LOWER.format("CBP below BP+L2 with ReLU"),
                compare.better("cbp", "l2", ["relu"]),
            ),
        ),
    ),
    _figure(
        key="fig10",
        title="Backprop with SGD: the other activations",
        what="BP with SGD, the remaining activations: online squared error, bins of 20,000",
        grid="step size 0.01, 0.003, 0.001; 100 runs of 1M examples",
        claim="the error rises after its minimum for every activation",
        drawing=_drawing("draw_step_sizes", activations=OTHERS, columns=4),
        claims=(
            Claim(
                "fig10.rises",
                "After performing well initially, the performance of Backprop gets worse over time for all activation "
                "functions.",
                RISES.format("other activation at step sizes 0.01 and 0.003 (the paper exempts 0.001, see fig11)"),
                compare.backprop_rises(OTHERS, LARGER_STEPS),
            ),
        ),
    ),
    _figure(
        key="fig11",
        title="Backprop with SGD, small step, longer",
        what="BP with SGD, step size 0.001, six activations",
        grid="100 runs of 5M examples",
        claim="the error rises, or stays above that of larger step sizes",
        drawing=_drawing("draw_step_sizes", activations=ALL, columns=3),
        claims=(
            Claim(
                "fig11.rises-or-stays-higher",
                "After 5M steps, the error for step-size of 0.001 either increases significantly or remains significantly "
                "higher than larger step-sizes.",
                "For every activation, BP with step size 0.001 rises within 5M examples, or its adjusted late error is above "
                "the adjusted total error (1M examples) of the better of 0.01 and 0.003. Value: the larger of adjusted late "
                "error / low point - 1.05 and late error / that total error - 1, both adjusted.",
                compare.rises_or_stays_higher,
            ),
        ),
    ),
    _figure(
        key="fig12",
        title="Backprop with Adam",
        what="BP with Adam, six activations: online squared error, bins of 20,000",
        grid="step size 0.01, 0.003, 0.001; 100 runs of 1M examples",
        claim="the error rises after its minimum for every activation",
        drawing=_drawing("draw_step_sizes", activations=ALL, columns=3),
        claims=(
            Claim(
                "fig12.rises",
                "Again, after performing well initially, the error goes up for all activation function.",
                RISES.format("activation with Adam at step sizes 0.01 and 0.003 (the paper exempts 0.001, see fig13)"),
                compare.backprop_rises(ALL, LARGER_STEPS),
            ),
        ),
    ),
    _figure(
        key="fig13",
        title="Backprop with Adam, small step, longer",
        what="BP with Adam, step size 0.001, six activations",
        grid="100 runs of 5M examples",
        claim="the error rises for every activation",
        drawing=_drawing("draw_step_sizes", activations=ALL, columns=3),
        claims=(
            Claim(
                "fig13.rises",
                "After tracking for 5M examples, the error for step-size of 0.001 increase too.",
                RISES.format("activation with Adam at step size 0.001 within 5M examples"),
                compare.backprop_rises(ALL, [0.001]),
            ),
        ),
    ),
    _figure(
        key="fig14",
        title="Continual Backprop with SGD: the other activations",
        what="as fig6 for the remaining activations",
        grid="as fig6",
        claim="CBP and L2 are better than BP for almost all settings; CBP is less sensitive than L2",
        drawing=_drawing("draw_curves_and_sensitivity", activations=OTHERS),
        claims=(
            Claim(
                "fig14.cbp-l2-stable",
                "Only CBP and BP+L2 are suitable for continual learning ...",
                STABLE.format("each of CBP and BP+L2 with every other activation"),
                compare.stability(["cbp", "l2"], OTHERS, stable=True),
            ),
            Claim(
                "fig14.others-degrade",
                "... the performance of all the other algorithms degrade over time.",
                DEGRADES.format("BP, and BP+OnlineNorm at its best setting, rise with every other activation"),
                compare.stability(["bp", "online_norm"], OTHERS, stable=False),
            ),
            Claim(
                "fig14.almost-all-values",
                "For all activation functions, CBP and BP+L2 perform significantly better than BP for almost all values of "
                "hyperprameters.",
                SHARE.format("three quarters", "3/4"),
                compare.better_for_a_share(compare.ALMOST_ALL, ["cbp", "l2"], OTHERS),
            ),
            Claim(
                "fig14.sensitivity",
                "CBP is less sensitive to its hyperparameter than BP+L2.",
                SENSITIVITY,
                compare.less_sensitive(OTHERS),
            ),
        ),
    ),
    _figure(
        key="fig15",
        title="Continual Backprop with Adam",
        what="BP, BP+L2 and CBP with Adam, step size 0.01, six activations: learning curves",
        grid="the best replacement rate and weight decay of fig16, per activation",
        claim="CBP is better than or close to L2, and both are better than BP",
        drawing=_drawing("draw_algorithms", activations=ALL, columns=3),
        claims=(
            Claim(
                "fig15.stable",
                "Both BP+L2 and CBP are performed robustly on this problem as their performance did not degrade over time.",
                STABLE.format("each of CBP and BP+L2 with every activation, with Adam,"),
                compare.stability(["cbp", "l2"], ALL, stable=True),
            ),
            Claim(
                "fig15.cbp-close-to-l2",
                "For all activations, CBP is either significantly better than BP+L2 or just slightly worse.",
                "Total error at the best settings, with Adam: CBP less than 10% above BP+L2, for every activation. Value: 1.1 "
                "- ratio.",
                compare.better("cbp", "l2", ALL, compare.SLIGHTLY_WORSE),
            ),
            Claim(
                "fig15.cbp-better-than-bp",
                "CBP with Adam performs significantly better than BP with Adam.",
                LOWER.format("with Adam: CBP below BP for every activation"),
                compare.better("cbp", "bp", ALL),
            ),
        ),
    ),
    _figure(
        key="fig16",
        title="Continual Backprop with Adam: sensitivity",
        what="BP+L2 and CBP with Adam, step size 0.01, six activations: parameter sensitivity",
        grid="sweeps of replacement rate and weight decay; 100 runs of 1M examples",
        claim="CBP and L2 are better than BP for most settings",
        drawing=_drawing("draw_sensitivity", activations=ALL, columns=3),
        claims=(
            Claim(
                "fig16.most-values",
                "For all activation functions both CBP and L2 perform significantly better than BP for most values of "
                "replacement-rate and weight-decay.",
                SHARE.format("half", "1/2"),
                compare.better_for_a_share(compare.MOST, ["cbp", "l2"], ALL),
            ),
            Claim(
                "fig16.wide-range",
                "CBP with Adam performs significantly better than BP with Adam for a wide range of replacement-rates.",
                "The longest stretch of successive replacement rates with a lower total error than BP covers at least 2 "
                "decades, for every activation. Value: decades - 2.",
                compare.wide_range,
            ),
            Claim(
                "fig16.l2-better-for-some",
                "For some activations like Sigmoid and ELU, BP+L2 performs better than CBP ...",
                LOWER.format("with Adam: BP+L2 below CBP with sigmoid and with ELU"),
                compare.better("l2", "cbp", ["sigmoid", "elu"]),
            ),
            Claim(
                "fig16.cbp-better-for-others",
                "... while for other activations like ReLU and Leaky-ReLU, CBP performs better than BP+L2.",
                LOWER.format("with Adam: CBP below BP+L2 with ReLU and with leaky ReLU"),
                compare.better("cbp", "l2", ["relu", "leaky_relu"]),
            ),
        ),
    ),
    _figure(
        key="fig17a",
        title="Six utilities on Bit-Flipping",
        what="CBP with six utility measures, tanh, Adam, step size 0.01",
        grid="sweep of the replacement rate",
        claim="the overall utility is best",
        drawing=_drawing("draw_utilities"),
        claims=(
            Claim(
                "fig17a.overall-best",
                "The overall utility measure performs better than all other measures of utility including the "
                "weight-magnitude based utility and random utility.",
                UTILITY.format("the overall utility below every other"),
                compare.best_utility("overall"),
            ),
            Claim(
                "fig17a.mean-corrected-second",
                "Next we compared the two best performing utility measures, overall and mean-corrected contribution.",
                UTILITY.format("the mean-corrected contribution below every other but the overall utility"),
                compare.best_utility("mean_corrected_contribution", but=["overall"]),
            ),
        ),
    ),
    _figure(
        key="fig19",
        title="Saturation and gradients",
        what="fraction of saturated units (|h| > 0.9) and magnitude of the input gradient, tanh; algorithms of fig6",
        grid="the best settings of fig6",
        claim="with BP nearly 90% of the units saturate and the gradient shrinks",
        drawing=_drawing("draw_saturation_and_gradient"),
        claims=(
            Claim(
                "fig19.saturation-grows",
                "An increasingly large fraction of features saturate over time for Backprop.",
                "Fraction of saturated features of BP, last 200,000 examples above first 100,000. Value: the difference.",
                compare.saturation_grows,
            ),
            Claim(
                "fig19.nearly-90-percent",
                "With Backprop, almost 90% of the features are saturated.",
                "Fraction of saturated features of BP over the last 200,000 examples, 80% to 95%. Value: distance to the "
                "bound.",
                compare.nearly_90_percent,
            ),
            Claim(
                "fig19.gradient-shrinks",
                "With BP, the magnitude of the gradient of the input weights becomes significantly smaller after some time.",
                "Magnitude of the input gradient of BP, last 200,000 examples below first 100,000. Value: 1 - ratio.",
                compare.gradient_shrinks,
            ),
            Claim(
                "fig19.online-norm-saturates-least",
                "OnlineNorm has the least number of saturated features.",
                "Fraction of saturated features over the last 200,000 examples, that of BP+OnlineNorm below each of the "
                "others. Value: the difference.",
                compare.norm_saturates_least,
            ),
            Claim(
                "fig19.online-norm-gradient",
                "OnlineNorm has a higher input gradient than CBP, but its performance is worse than that of CBP.",
                "Input gradient and error over the last 200,000 examples, both larger for OnlineNorm than for CBP. Value: "
                "ratio - 1.",
                compare.norm_gradient,
            ),
            Claim(
                "fig19.online-norm-error",
                "CBP and L2 have the least online error, but the online error of OnlineNorm is much larger than CBP or L2.",
                "Total error at the best settings, that of BP+OnlineNorm above each of CBP and BP+L2. Value: ratio - 1.",
                compare.norm_error,
            ),
        ),
    ),
)


def _with_plain_norm(figure: Figure) -> Figure:
    """A figure with an OnlineNorm that has no learned scale and bias, and what it says of OnlineNorm."""
    key = f"{figure.key}-plain-norm"
    about = [claim for claim in figure.claims if "online-norm" in claim.key or claim.key == "fig6.better-than-bp"]
    return replace(
        figure,
        key=key,
        title=f"{figure.title} (OnlineNorm without scale and bias)",
        claims=tuple(replace(claim, key=claim.key.replace(figure.key, key)) for claim in about),
    )


PLAIN_NORM = tuple(_with_plain_norm(figure) for figure in FIGURES if figure.key in ("fig6", "fig19"))
"""Not figures of the paper: what its figures would be with a smaller OnlineNorm, which it may have meant."""
