"""A film of the ant: one policy on several frictions, side by side, drawn in software.

The policy is Continual PPO's, trained on the paper's first friction. Training leaves a checkpoint behind after each bin, from
which it goes on, so that another film of the same policy takes seconds.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns

from cbp_ray.experiments.checkpoint import load_checkpoint, save_checkpoint
from cbp_ray.experiments.config import OnlineConfig
from rllib_ext.ant.environment import SlipperyAnt
from rllib_ext.ant.physics import JOINTS, STEP_SECONDS
from rllib_ext.engine import RllibEngine

BIN_SIZE = 40_960
"""Ten iterations of PPO."""
COLOURS = 128
"""Of the film."""
FRAME_STEPS = 4
"""Steps of the ant between two pictures: 15 pictures a second."""

Policy = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class TrainedPolicy:
    """The most probable actions of a trained run, for one observation. It keeps the run's engine, and RLlib, alive."""

    def __init__(self, engine: RllibEngine) -> None:
        self.engine = engine
        algorithm: Any = engine.runs[0].build()
        self.module = algorithm.env_runner_group.local_env_runner.module

    def __call__(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            outputs = self.module.forward_inference({Columns.OBS: torch.from_numpy(observation[None])})
        means: NDArray[np.float32] = outputs[Columns.ACTION_DIST_INPUTS][0, :JOINTS].numpy()
        # RLlib's actions are in [-1, 1], as the ant's.
        return np.clip(means, -1, 1)


class Scene(NamedTuple):
    """The ant on one friction."""

    friction: float
    pictures: list[NDArray[np.uint8]]
    distances: list[float]
    """Metres that it has come, at each picture."""
    fell_after: float | None
    """Seconds after which it fell; None if it did not."""


def policy_config(steps: int) -> OnlineConfig:
    """Continual PPO on a friction that does not change, for so many time-steps, rounded to whole bins."""
    examples = max(1, round(steps / BIN_SIZE)) * BIN_SIZE
    return OnlineConfig.make(
        {
            "problem": {"name": "slippery_ant", "friction_period": 10 * examples},
            "algorithm": {"name": "cbp", "replacement_rate": 1e-4, "maturity_threshold": 500},
            "optimizer": {"name": "adam", "step_size": 1e-4},
            "examples": examples,
            "bin_size": BIN_SIZE,
        }
    )


def train_policy(steps: int, seed: int, folder: Path, progress: Callable[[int, float], None]) -> TrainedPolicy:
    """Trains, or goes on with what is in `folder`.

    Args:
      steps: time-steps, rounded to whole bins.
      seed: seed of the run.
      folder: where checkpoints are kept.
      progress: called at the beginning and after each bin with the steps so far and the mean return of the bin's episodes.
    """
    config = policy_config(steps)
    engine = RllibEngine(config, (seed,))
    # The schedule of frictions never comes into play, so that a longer training goes on with a shorter one.
    found = [(path.stem.rpartition("-")[2], path) for path in folder.glob(f"seed-{seed}-*.npz")]
    kept = {int(steps): path for steps, path in found if steps.isdigit()}
    usable = max((steps for steps in kept if steps <= config.examples), default=None)
    if usable is not None:
        engine.load_state(load_checkpoint(kept[usable]), usable)
    last: Path | None = None
    progress(engine.steps, float("nan"))
    while engine.steps < config.examples:
        returns = engine.advance(BIN_SIZE)["episode_return"]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"seed-{seed}-{engine.steps}.npz"
        save_checkpoint(path, engine.state())
        if last is not None:
            last.unlink(missing_ok=True)
        last = path
        progress(engine.steps, float(returns[0]))
    return TrainedPolicy(engine)


def film_scene(policy: Policy, friction: float, seconds: float, seed: int = 0) -> Scene:
    """Films one episode. Where the ant falls, the last picture stays."""
    ant = SlipperyAnt(friction, render_mode="rgb_array")
    observation, _ = ant.reset(seed=seed)
    scene = Scene(friction, [], [], None)
    fallen: float | None = None
    for step in range(round(seconds / STEP_SECONDS)):
        if fallen is None:
            observation, _, ended, _, _ = ant.step(policy(observation))
            if ended:
                fallen = (step + 1) * STEP_SECONDS
        if step % FRAME_STEPS == 0:
            scene.pictures.append(np.asarray(ant.render()))
            scene.distances.append(ant.distance)
    ant.close()
    return scene._replace(fell_after=fallen)


def draw_film(scenes: Sequence[Scene], path: Path, title: str, progress: Callable[[int], None] = lambda _: None) -> None:
    """Draws scenes side by side as an animated GIF."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(3.2 * len(scenes), 2.9), layout="constrained", dpi=75)
    canvas: Any = FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    panels = [figure.add_subplot(1, len(scenes), number + 1) for number in range(len(scenes))]
    images, texts = [], []
    for panel, scene in zip(panels, scenes, strict=True):
        panel.set_axis_off()
        panel.set_title(f"friction {scene.friction:g}", fontsize=10)
        images.append(panel.imshow(scene.pictures[0]))
        texts.append(panel.text(0.02, 0.04, "", transform=panel.transAxes, fontsize=9))
    pictures: list[Image.Image] = []
    for frame in range(len(scenes[0].pictures)):
        progress(frame)
        seconds = frame * FRAME_STEPS * STEP_SECONDS
        for image, text, scene in zip(images, texts, scenes, strict=True):
            image.set_data(scene.pictures[frame])
            fallen = scene.fell_after is not None and seconds >= scene.fell_after
            text.set_text(f"{seconds:4.1f} s   {scene.distances[frame]:5.1f} m{'   fallen' if fallen else ''}")
        canvas.draw()
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        # One small palette for all, and no dithering: half of the size.
        palette = pictures[0] if pictures else None
        pictures.append(picture.quantize(COLOURS, palette=palette, dither=Image.Dither.NONE))
    path.parent.mkdir(parents=True, exist_ok=True)
    milliseconds = round(1000 * FRAME_STEPS * STEP_SECONDS)
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0, optimize=True)
