"""The settings of the experiment Slippery Ant in the words of RLlib and of the environment; defaults are the problem's own."""

from typing import Any

from cbp_ray.problems import SlipperyAntConfig

PAPER = SlipperyAntConfig()
"""The settings of section 2 and appendix D of the paper."""


def friction_settings(problem: SlipperyAntConfig = PAPER) -> dict[str, Any]:
    """The settings of `FrictionSchedule`, without a seed."""
    return {name: getattr(problem, f"friction_{name}") for name in ("period", "low", "high", "initial")}


def ppo_settings(problem: SlipperyAntConfig = PAPER) -> dict[str, Any]:
    """The settings of PPO for `.training(...)`."""
    return {
        "train_batch_size_per_learner": problem.iteration_size,
        "num_epochs": problem.epochs,
        "minibatch_size": problem.minibatch_size,
        "gamma": problem.discount,
        "lambda_": problem.gae_lambda,
        "clip_param": problem.clip,
    }
