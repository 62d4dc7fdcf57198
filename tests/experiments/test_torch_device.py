"""The torch engine on a device: everything is placed there, whichever it is. (`meta` stands for a GPU: torch refuses to mix
its tensors with those of the CPU in the same way, and no numbers come out of it.)"""

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import ray
import torch
from torch import Tensor

from cbp_ray.errors import InputError
from cbp_ray.experiments import OnlineConfig, iterate_online, run_online
from cbp_ray.experiments.engines.torch_bit_flipping import BitFlippingRun
from cbp_ray.results import Block, Store
from cbp_ray.sweeps import block_run, trainable

ALGORITHMS = [{"name": "bp"}, {"name": "online_norm"}, {"name": "linear"}, {"name": "cbp", "replacement_rate": 1e-3}]


def make(algorithm: dict[str, Any], optimizer: str = "sgd") -> OnlineConfig:
    settings = {"algorithm": algorithm, "optimizer": {"name": optimizer, "step_size": 0.01}, "examples": 20, "bin_size": 10}
    return OnlineConfig.make(settings)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a["name"])
def test_a_learner_has_nothing_left_on_the_cpu(algorithm: dict[str, Any], optimizer: str) -> None:
    run = BitFlippingRun(make(algorithm, optimizer), seed=0, device="meta")
    x, y = torch.zeros(1, 20, device="meta"), torch.zeros(1, 1, device="meta")
    for _ in range(3):
        assert run.learn(x, y)[1].device.type == "meta"
    assert {parameter.device.type for parameter in run.model.parameters()} == {"meta"}


def test_the_data_is_where_the_learner_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        pass

    def learn(_self: BitFlippingRun, x: Tensor, y: Tensor) -> Tensor:
        raise Seen(x.device.type, y.device.type)

    monkeypatch.setattr(BitFlippingRun, "learn", learn)
    with pytest.raises(Seen) as seen:
        next(iterate_online(make({"name": "bp"}), [0], "torch", device="meta"))
    assert seen.value.args == ("meta", "meta")


def test_the_kernel_runs_on_the_cpu_only() -> None:
    with pytest.raises(InputError, match="device: must be 'cpu' for engine 'kernel', got 'cuda'"):
        run_online(make({"name": "bp"}), [0], "kernel", device="cuda")


@pytest.mark.parametrize(("reserved", "usable", "device"), [(["0"], True, "cuda"), (["0"], False, "cpu"), ([], True, "cpu")])
def test_a_trial_uses_the_gpu_that_it_has_reserved(
    reserved: list[str], usable: bool, device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Context:
        def get_accelerator_ids(self) -> dict[str, list[str]]:
            return {"GPU": reserved, "TPU": []}

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", Context)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    chosen: list[str] = []
    real = block_run.iterate_with_pauses

    def iterate(*arguments: Any, device: str = "cpu") -> Any:
        chosen.append(device)
        return real(*arguments)

    monkeypatch.setattr(block_run, "iterate_with_pauses", iterate)
    # It is kept for the process, and would tell other tests of this context.
    monkeypatch.setattr(block_run, "environment", lambda: {})
    store, block = Store(tmp_path, "small"), Block(make({"name": "bp"}), "torch", (0,))
    work = block_run.BlockRun(store, block, trainable.choose_device(block))
    assert (work.device, chosen) == (device, [device])
    while not work.advance()["done"]:
        pass
    assert trainable.choose_device(Block(make({"name": "bp"}), "kernel", (0,))) == "cpu"
    (runs,) = (tmp_path / "small" / "runs").iterdir()
    assert pyarrow.parquet.read_table(runs).to_pylist()[0]["device"] == device
