"""The Permuted MNIST figures, and what the paper says of them, sentence by sentence.

Definitions shared by the claims; `comparisons.py` and `statistics.py` compute them. Large is good here; inside,
everything is computed from the error = 1 - accuracy, so that small is good as in Bit-Flipping:

- *total accuracy*: accuracy averaged over a whole run, then over runs; *best*: the setting of most total accuracy, chosen per
  algorithm;
- *late*: average over the last 10 bins (the last fifth of shorter curves);
- *high point*: average over the 5 successive bins (a tenth of shorter curves) of highest accuracy before the late ones, chosen
  on one half of the runs and read off on the other;
- *fall*: high point - late accuracy, in percentage points; *falls*: by more than half a point; *stable*: by less;
- *grows*: the late weight magnitude is more than 5% above that of the 10 bins before half of the run.

The data need no adjustment: every bin has the same images. The definitions were fixed before any run of the figures.
"""

from functools import partial

from cbp_ray.figures.claims import Claim
from cbp_ray.figures.figure import Figure, drawn_by
from cbp_ray.figures.permuted_mnist import comparisons as compare

FALLS = "{} falls by more than 0.5 points{}. Value: fall - 0.5, in percentage points."
MORE = "The accuracy of BP falls more {}. Value: difference of the two falls, in percentage points."
GROWING = "Mean magnitude of the last layer's weights at the best settings, late against half of the run: {}. Value: {}."

_figure = partial(Figure, problem="permuted-mnist", numbers=compare.numbers)
_drawing = partial(drawn_by, "cbp_ray.figures.permuted_mnist.drawings")

FIGURES = (
    _figure(
        key="fig4",
        title="Backprop on Permuted MNIST",
        what="BP with SGD, three hidden ReLU layers of 2000: online accuracy, bins of 60,000",
        grid="step size 0.01, 0.003, 0.001; 10 runs of 48M examples",
        claim="the accuracy falls with time for every step size",
        drawing=_drawing("draw_accuracy_along", name="step_size"),
        claims=(
            Claim(
                "fig4.falls",
                "The performance of Backprop gets worse over time for all step-sizes, meaning that Backprop loses its ability "
                "to adapt under extended tracking.",
                FALLS.format("The accuracy of BP", " for every step size"),
                compare.backprop_falls("step_size"),
            ),
            Claim(
                "fig4.slower-for-smaller-steps",
                "The degradation in performance is slower for smaller step-sizes.",
                MORE.format("with a step size than with the next smaller one"),
                compare.falls_more("step_size", larger=True),
            ),
        ),
    ),
    _figure(
        key="fig7",
        title="Continual Backprop on Permuted MNIST",
        what="BP, BP+L2, BP+OnlineNorm and CBP with SGD, step size 0.003: online accuracy, bins of 60,000",
        grid="replacement rate 1e-4, 1e-5, 1e-6; weight decay 1e-3 to 1e-6; 16 OnlineNorm pairs; 10 runs of 48M examples",
        claim="only CBP does not fall",
        drawing=_drawing("draw_algorithms"),
        claims=(
            Claim(
                "fig7.cbp-stable",
                "... CBP is stable as its performance does not degrade over time.",
                "At its best setting, the accuracy of CBP falls by less than 0.5 points. Value: 0.5 - fall, in percentage "
                "points.",
                compare.stays(["cbp"], stable=True),
            ),
            Claim(
                "fig7.others-degrade",
                "The performance of all the other algorithms degrades over time.",
                FALLS.format("At its best setting, the accuracy of each of BP, BP+L2 and BP+OnlineNorm", ""),
                compare.stays(["bp", "l2", "online_norm"], stable=False),
            ),
            Claim(
                "fig7.wide-range",
                "CBP maintains a good level of performance for a wide range of replacement rates.",
                "For every replacement rate, the accuracy of CBP falls by less than 0.5 points, and the late accuracy is "
                "above that of BP. Value: 0.5 - fall, and the difference, in percentage points.",
                compare.good_at_every_rate,
            ),
        ),
    ),
    _figure(
        key="fig8",
        title="Weight magnitude on Permuted MNIST",
        what="mean magnitude of the last layer's weights in the runs of fig7",
        grid="as fig7",
        claim="the weights keep growing for BP and OnlineNorm; L2 and CBP stop the growth",
        drawing=_drawing("draw_weight_magnitude"),
        claims=(
            Claim(
                "fig8.weights-grow",
                "The weight magnitude continues to increase for BP and OnlineNorm, ...",
                GROWING.format("more than 5% larger for each of BP and BP+OnlineNorm", "ratio - 1.05"),
                compare.weights_grow(["bp", "online_norm"], growing=True),
            ),
            Claim(
                "fig8.sharpest-drops",
                "... and their performances have the sharpest drops. L2 ... drops slowly compared to BP and OnlineNorm.",
                "At the best settings, the accuracy of each of BP and BP+OnlineNorm falls more than that of each of BP+L2 and "
                "CBP. Value: difference of the two falls, in percentage points.",
                compare.drops_more(["bp", "online_norm"], than=["l2", "cbp"]),
            ),
            Claim(
                "fig8.l2-stops-growth",
                "L2 stops the increase in the weight magnitude ...",
                GROWING.format("less than 5% larger for BP+L2", "1.05 - ratio"),
                compare.weights_grow(["l2"], growing=False),
            ),
            Claim(
                "fig8.cbp-stops-growth",
                "Finally, CBP also stops the increase in weight magnitude ...",
                GROWING.format("less than 5% larger for CBP", "1.05 - ratio"),
                compare.weights_grow(["cbp"], growing=False),
            ),
        ),
    ),
    _figure(
        key="fig18",
        title="Speed of change on Permuted MNIST",
        what="BP with SGD, step size 0.01, three hidden ReLU layers of 2000: online accuracy, bins of 1M",
        grid="a new permutation every 10k, 100k, 1M examples; 10 runs of 48M examples",
        claim="the faster the change, the faster the decay",
        drawing=_drawing("draw_accuracy_along", name="task_length"),
        claims=(
            Claim(
                "fig18.falls",
                "The performance of Backprop drops for a wide range of rates of distribution change ...",
                FALLS.format("The accuracy of BP", " for every period of change"),
                compare.backprop_falls("task_length"),
            ),
            Claim(
                "fig18.faster-change-faster-decay",
                "The speed of the decay in performance increases with the increase in the speed of distribution change.",
                MORE.format("with a period of change than with the next longer one"),
                compare.falls_more("task_length"),
            ),
            Claim(
                "fig18.fastest",
                "The drop in performance is fastest for the fastest changing distribution.",
                MORE.format("with the shortest period of change than with each of the others"),
                compare.falls_most("task_length"),
            ),
        ),
    ),
    _figure(
        key="fig20",
        title="Network width on Permuted MNIST",
        what="BP with SGD, step size 0.003, three hidden ReLU layers: online accuracy, bins of 60,000",
        grid="width 100 and 1000; 10 runs of 48M examples",
        claim="the smaller network decays faster",
        drawing=_drawing("draw_accuracy_along", name="width"),
        claims=(
            Claim(
                "fig20.falls",
                "... and a wide range of network sizes.",
                FALLS.format("The accuracy of BP", " for every width"),
                compare.backprop_falls("width"),
            ),
            Claim(
                "fig20.smaller-decays-faster",
                "The speed of the decay in performance is larger for smaller network.",
                MORE.format("with the narrower network"),
                compare.falls_more("width"),
            ),
        ),
    ),
)
