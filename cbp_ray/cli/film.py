"""The command `cbp-ray film`."""

import math
from pathlib import Path
from typing import Any

import click

from cbp_ray.cli.options import check_storage, check_writable, storage_option
from cbp_ray.errors import InputError


class Frictions(click.ParamType[tuple[float, ...]]):
    """Positive numbers, separated by commas."""

    name = "frictions"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            numbers = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        if not 1 <= len(numbers) <= 6 or not all(0 < number < math.inf for number in numbers):
            self.fail(f"must be one to six positive numbers, got {value!r}; use 0.05,1.5,10, say", param, ctx)
        return numbers


@click.command()
@click.option("--steps", type=click.IntRange(1, 10**9), default=1_000_000, show_default=True, help="Time-steps of training.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of the training.")
@click.option("--frictions", metavar="F,F,…", type=Frictions(), default="0.02,1.5,20", show_default=True, help="What to show.")
@click.option("--seconds", type=click.FloatRange(0.1, 60), default=6.0, show_default=True, help="Length of the film.")
@click.option(
    "--out", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), default="ant.gif", show_default=True,
    help="The film, an animated GIF.",
)  # fmt: skip
@storage_option
def film(steps: int, seed: int, frictions: tuple[float, ...], seconds: float, out: Path, storage: str) -> None:
    """Film the ant with a trained policy on several frictions.

    Trains Continual PPO on the paper's first friction, 1.5, and films the policy side by side. A training that was
    interrupted goes on, also to more steps; with a policy that is there already, a film takes seconds.

    \b
    Examples:
      cbp-ray film
      cbp-ray film --steps 3000000 --frictions 0.01,1.5,100 --out docs/ant.gif
    """
    if out.suffix.lower() != ".gif":
        raise InputError(f"--out: must end in .gif, got {str(out)!r}; use {out.with_suffix('.gif')}")
    if "://" in storage:
        raise InputError(f"--storage: must be a folder of this machine, got {storage!r}; use results, say")
    check_writable(out.resolve().parent, "--out")
    folder = Path(check_storage(storage)) / "film"

    from cbp_ray.results.keys import config_key
    from rllib_ext.film import draw_film, film_scene, policy_config, train_policy

    # By the results' version: a training does not go on with another one's numbers.
    folder = folder / config_key(policy_config(1), "rllib")
    wanted = policy_config(steps).examples
    with click.progressbar(length=wanted, label="training", show_pos=True, item_show_func=_last_return) as bar:
        policy = train_policy(steps, seed, folder, lambda done, value: bar.update(done - bar.pos, value))
    with click.progressbar(frictions, label="filming") as bar_of_scenes:
        scenes = [film_scene(policy, friction, seconds) for friction in bar_of_scenes]
    with click.progressbar(length=len(scenes[0].pictures), label="drawing") as bar:
        title = f"Continual PPO after {wanted:,} time-steps on friction 1.5, seed {seed}"
        draw_film(scenes, out, title, lambda frame: bar.update(frame - bar.pos))
    for scene in scenes:
        fell = "" if scene.fell_after is None else f", fell after {scene.fell_after:.1f} s"
        click.echo(f"friction {scene.friction:g}: {scene.distances[-1]:.1f} m in {seconds:g} s{fell}")
    click.echo(f"film: {out}")


def _last_return(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"return {value:.0f}"
