"""Threads of learners and env runners."""

import os
from collections.abc import Iterator

import pytest
import ray
import torch
from cheap_ant import RecordingRunner, cheap_config

from cbp_ray.sweeps import cluster
from rllib_ext.threads import VARIABLE, learner_threads

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def test_a_learner_takes_the_cores_of_its_process_unless_fewer_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert learner_threads() == 6
    for asked, taken in (("4", 4), ("16", 6), ("0", 1), ("many", 6)):
        monkeypatch.setenv(VARIABLE, asked)
        assert learner_threads() == taken


@pytest.mark.long
def test_a_worker_of_ray_takes_the_cpus_that_it_was_given() -> None:
    with cluster.connected(None):
        asked = {cpus: ray.remote(num_cpus=cpus)(learner_threads).remote() for cpus in (0, 0.5, 1)}
        assert {cpus: ray.get(answer) for cpus, answer in asked.items()} == {0: 1, 0.5: 1, 1: 1}


def test_an_env_runner_among_others_takes_one_thread(threads: int) -> None:
    torch.set_num_threads(2)
    RecordingRunner(config=cheap_config(0, 1), num_workers=0, worker_index=1).stop()
    assert torch.get_num_threads() == 1
