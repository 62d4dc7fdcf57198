"""The wheel in other people's environments: the core alone, and everything, each in an empty virtual environment."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("wheel")]

TRAIN = """
import time
import torch
begun = time.process_time()
from cbp_ray import Adam, GenerateAndTest
seconds = time.process_time() - begun
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = Adam(model.parameters(), lr=1e-3)
gnt = GenerateAndTest(model, optimizer, replacement_rate=1e-2, maturity_threshold=1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    gnt.step()
assert sum(gnt.replaced.values()) > 0
from cbp_ray import run_online
config = {"algorithm": {"name": "cbp", "replacement_rate": 1e-4}, "optimizer": {"name": "sgd", "step_size": 0.01}}
print(run_online({**config, "examples": 20_000, "bin_size": 10_000}, seeds=range(2)).error.shape)
print(f"{seconds:.3f}")
"""


def call(command: list[str | Path], folder: Path, code: int = 0) -> str:
    """What a command prints on both channels; it must end with `code`."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "CBP_RAY_METHODS")
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run([str(c) for c in command], cwd=folder, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that no build products are left in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "*.egg-info", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, source, ignore=left_out)
    call([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source], folder)
    (built,) = folder.glob("*.whl")
    return built


def install(wheel: Path, extra: str, folder: Path) -> Path:
    """An empty virtual environment with the wheel in it; returns its folder of programs."""
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / "bin"
    pip = [programs / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    call([*pip, f"{wheel}{extra}"], folder)
    return programs


def test_the_core_alone(wheel: Path, tmp_path: Path) -> None:
    programs = install(wheel, "", tmp_path)
    for package in ("ray", "click", "pyarrow", "matplotlib", "gymnasium", "tensorboard"):
        call([programs / "python", "-c", f"import {package}"], tmp_path, code=1)
    call([programs / "python", "-c", TRAIN], tmp_path)  # the first import writes bytecode and fills the disk's cache
    shape, seconds = call([programs / "python", "-c", TRAIN], tmp_path).splitlines()[-2:]
    assert shape == "(2, 2)"
    assert float(seconds) < 0.5  # besides torch, which takes most of the two seconds that importing may take
    said = call([programs / "cbp-ray", "figures"], tmp_path, code=2)
    assert len(said.splitlines()) == 1 and "cbp-ray[service]" in said
    said = call([programs / "python", "-c", "import rllib_ext"], tmp_path, code=1)
    assert "cbp-ray[rllib]" in said.splitlines()[-1]
    for package in ("sweeps", "results", "figures"):
        said = call([programs / "python", "-c", f"import cbp_ray.{package}"], tmp_path, code=1)
        assert "cbp-ray[service]" in said.splitlines()[-1]


def test_everything(wheel: Path, tmp_path: Path) -> None:
    programs = install(wheel, "[all]", tmp_path)
    call([programs / "python", "-c", TRAIN], tmp_path)
    assert "fig6" in call([programs / "cbp-ray", "figures"], tmp_path)
    call([programs / "cbp-ray", "reproduce", "fig3", "--scale", "smoke", "--storage", tmp_path / "storage"], tmp_path)
    drawn = list((tmp_path / "storage").rglob("fig3.png"))
    assert len(drawn) == 1
    made = "import gymnasium, rllib_ext; print(gymnasium.make('SlipperyAnt-v0').reset(seed=0)[0].shape)"
    assert "(28,)" in call([programs / "python", "-c", made], tmp_path)
    assert "cbp_ray_benchmarks" in call(
        [programs / "python", "-c", "import cbp_ray_benchmarks as b; print(b.__file__)"], tmp_path
    )
