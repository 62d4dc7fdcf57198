"""The Slippery Ant figures, and what the paper says of them, sentence by sentence.

Definitions shared by the claims; `comparisons.py` and `statistics.py` compute them:

- *return*: mean return of the episodes that end in a bin; large is good;
- *total return*: return averaged over a whole run, then over runs; *best*: the setting of most total return, chosen per
  algorithm (and per utility in figure 17b), anew in every resample where totals are compared;
- *phase*: the time-steps between two changes of the friction; a bin that sees two frictions counts for no phase;
- *beginning*: average over the second half of the first phase; *end*: average over the second half of the last phase. The
  friction of the last phase is another one in every run, that of the first is the standard 1.5 in all of them, as in the paper;
- *degrades*: the end is more than 10% below the beginning; *as well as initially*: it is not.

The friction of a run depends on its seed alone, so algorithms are compared on the same frictions. The definitions were fixed
before any run of the figures.
"""

from functools import partial

from cbp_ray.figures.claims import Claim
from cbp_ray.figures.figure import Figure, drawn_by
from cbp_ray.figures.slippery_ant import comparisons as compare

KEPT = "{}, at its best setting: the return at the end is {} 90% of that at the beginning. Value: {}."
MORE = "Total return at the best settings: {}. Value: difference."
UTILITIES = ("overall", "mean_corrected_contribution")

_figure = partial(Figure, problem="slippery-ant", numbers=compare.numbers)
_drawing = partial(drawn_by, "cbp_ray.figures.slippery_ant.drawings")

FIGURES = (
    _figure(
        key="fig9",
        title="Continual PPO on Slippery Ant",
        what="PPO, PPO+L2 and Continual PPO: episodic return, bins of 40,000 time-steps, and what explains it",
        grid="6 pairs of replacement rate and maturity threshold, weight decay 1e-3 to 1e-6 (appendix D); 30 runs of 100M",
        claim="PPO degrades; Continual PPO and PPO+L2 are better than PPO, and Continual PPO does as well as it did initially",
        drawing=_drawing("draw_algorithms"),
        claims=(
            Claim(
                "fig9.ppo-degrades",
                "... the performance of PPO degrades a lot in our non-stationary RL problem.",
                KEPT.format("PPO", "below", "0.9 - end / beginning"),
                compare.degrades("bp"),
            ),
            Claim(
                "fig9.better-than-ppo",
                "... both CPPO and PPO+L2 perform substantially better than PPO, ...",
                MORE.format("Continual PPO and PPO+L2 each have more than PPO"),
                compare.better(["cbp", "l2"], than=["bp"]),
            ),
            Claim(
                "fig9.cppo-best",
                "... and CPPO performed best, ...",
                MORE.format("Continual PPO has more than PPO+L2, and more than PPO"),
                compare.better(["cbp"], than=["l2", "bp"]),
            ),
            Claim(
                "fig9.cppo-as-initially",
                "... where it continually performed as well as it did initially.",
                KEPT.format("Continual PPO", "above", "end / beginning - 0.9"),
                compare.stays("cbp"),
            ),
        ),
    ),
    _figure(
        key="fig17b",
        title="Two utilities on Slippery Ant",
        what="Continual PPO with the overall and the mean-corrected contribution utility, and PPO: episodic return",
        grid="the pairs of fig9 with each utility",
        claim="the overall utility is better than the mean-corrected contribution; both are better than PPO",
        drawing=_drawing("draw_utilities"),
        claims=(
            Claim(
                "fig17b.better-than-ppo",
                "The results show that both utility measures perform significantly better than PPO.",
                MORE.format("Continual PPO with each of the two utilities has more than PPO"),
                compare.utilities_better_than_backprop(UTILITIES),
            ),
            Claim(
                "fig17b.overall-better",
                "But, the overall utility performs significantly better than the other utility measure.",
                MORE.format("Continual PPO has more with the overall utility than with the mean-corrected contribution"),
                compare.utility_better(*UTILITIES),
            ),
            Claim(
                "fig17b.more-near-the-end",
                "This difference in more pronounced near the end, ...",
                "Return with the overall utility - return with the mean-corrected contribution, at the best settings: larger "
                "at the end than at the beginning. Value: difference of the two differences.",
                compare.difference_grows(*UTILITIES),
            ),
            Claim(
                "fig17b.overall-as-initially",
                "... when Continual PPO with the overall utility measure performs almost as well as it did at the beginning.",
                KEPT.format("Continual PPO with the overall utility", "above", "end / beginning - 0.9"),
                compare.stays("cbp", utility="overall"),
            ),
        ),
    ),
)

LONG = _figure(
    key="fig9-long",
    title="PPO and Continual PPO on Slippery Ant, one long run each",
    what="PPO and Continual PPO: episodic return, bins of 50,000 time-steps, and what explains it",
    grid="one run of 10M each, a new friction every 1M",
    claim="one run each decides nothing; it shows what a longer time does",
    drawing=_drawing("draw_algorithms"),
    claims=(),
)
"""Not a figure of the paper, whose runs are ten times as long and thirty times as many."""
