"""The Slippery Ant figures. Their sweeps run with `cbp-ray run`; they have no drawings and no claims yet."""

from functools import partial

from cbp_ray.figures.figure import Figure

_figure = partial(Figure, problem="slippery-ant")

FIGURES = (
    _figure(
        key="fig9",
        title="Continual PPO on Slippery Ant",
        what="PPO, PPO+L2 and Continual PPO: episodic return, bins of 40,000 time-steps",
        grid="6 pairs of replacement rate and maturity threshold, weight decay 1e-3 to 1e-6 (appendix D)",
        claim="late in learning, Continual PPO is better than PPO+L2, and PPO+L2 better than PPO",
    ),
    _figure(
        key="fig17b",
        title="Two utilities on Slippery Ant",
        what="Continual PPO with the overall and the mean-corrected contribution utility",
        grid="the settings of fig9",
        claim="the overall utility is better than the mean-corrected contribution; both are better than PPO",
    ),
)
