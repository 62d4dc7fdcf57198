"""The watch over a cluster's GCS: says once that there is no answer, and once that there is one again."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import ray

from cbp_ray.errors import InputError
from cbp_ray.sweeps import cluster


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the GCS does when it is asked, one after the other; the last goes on."""
    script = [True]

    def ask(address: str) -> None:
        if not (script.pop(0) if len(script) > 1 else script[0]):
            raise (InputError("late") if len(script) % 2 else OSError("gone"))

    monkeypatch.setattr(cluster, "_check_answers", ask)
    monkeypatch.setattr(cluster, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="here:1"))
    return script


def watch(say: Callable[[str], None], seconds: float = 0.5) -> None:
    with cluster.watched(say):
        time.sleep(seconds)


def test_silence_and_its_end_are_said_once_each(answers: list[bool]) -> None:
    said: list[str] = []
    answers[:] = [True, False, False, False, True, True]
    watch(said.append)
    assert ["not" in message for message in said] == [True, False]


def test_a_late_answer_is_not_said(answers: list[bool]) -> None:
    said: list[str] = []
    answers[:] = [True, False, True, False, True]
    watch(said.append)
    assert said == []


def test_who_listens_no_more_ends_nothing(answers: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda about: broken.append(str(about)))

    def say(message: str) -> None:
        raise BrokenPipeError

    answers[:] = [False]
    watch(say, 0.2)
    assert broken == []
