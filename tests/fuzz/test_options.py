"""Options that nobody meant: storage, address, data folder, limits, columns. One line and exit code 2, or it works.

Nothing here starts Ray: where a command would go on to run something, that is stood in for.
"""

import io
import os
from pathlib import Path
from typing import Any

import pytest
from fuzz_help import answer, efforts, hold, scalars, texts
from hypothesis import strategies as st
from made_up_results import store_made_up

from cbp_ray.problems import mnist_files
from cbp_ray.sweeps import load_sweep

SMALL = """
sweep: small
seeds: 0:2
base: {optimizer: {name: sgd, step_size: 0.01}, examples: 300, bin_size: 100, algorithm: {name: bp}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which all that is written lies, with a sweep file, results, and things that are no folders."""
    lab = tmp_path / "lab"
    lab.mkdir()
    (lab / "small.yaml").write_text(SMALL)
    store_made_up(load_sweep(lab / "small.yaml"), lab / "results", [0.5])
    (lab / "closed").mkdir(mode=0o500)
    (lab / "loop").symlink_to(lab / "loop")
    os.mkfifo(lab / "pipe")
    monkeypatch.chdir(lab)
    monkeypatch.setattr("sys.stdin", io.StringIO())  # nobody answers
    monkeypatch.setattr(
        "cbp_ray.figures.sweep_curves.draw_sweep", lambda sweep, drawn, path: path.parent.mkdir(0o700, True, True)
    )
    monkeypatch.setattr("cbp_ray.sweeps.run.run_sweep", lambda *_, **__: load_nothing())
    return lab


def load_nothing() -> Any:
    from cbp_ray.sweeps.progress import Totals

    return Totals(0, 0, 0, 0, 0.0)


SCHEMES = [
    "file://",
    "mock://",
    "mock:///",
    "nonsense://",
    "s3:",
    "://",
    "file:///dev/null/x",
    "file://host/x",
    "FILE:///tmp/x",
]
PLACES = [
    *(
        "results",
        "small.yaml",
        "small.yaml/x",
        "closed",
        "closed/x",
        "loop",
        "loop/x",
        "pipe",
        "pipe/x",
        "/dev/null",
        "/dev/full/x",
    ),
    *("/proc/self", "/proc/1/x", "/sys/x", "x" * 300, "x/" * 2000, "new/a/b", "", ".", "\0", "a\0b", "~", "\n", "é", "\udcff"),
]
storages = st.sampled_from(PLACES) | st.sampled_from(SCHEMES) | st.builds("{}{}".format, st.sampled_from(SCHEMES[:5]), texts)
READERS = [
    ["status"],
    ["status", "small"],
    ["results", "small"],
    ["results", "small.yaml"],
    ["verify", "--json"],
    ["plot", "small.yaml", "--output", "drawn"],
    ["plot", "fig3", "--output", "drawn"],
    ["run", "small.yaml", "--dry-run"],
    ["run", "small.yaml"],
    ["mv", "small", "other", "--yes"],
    ["rm", "nothing", "--yes"],
    ["reproduce", "fig19", "--scale", "smoke", "--output", "drawn"],
    ["film", "--steps", "1", "--out", "x.mp4"],
]


@efforts
def test_storage(folder: Path, effort: str) -> None:
    def check(command: list[str], storage: str) -> None:
        answer([*command, f"--storage={storage}"])
        if (folder / "results" / "other").exists():
            (folder / "results" / "other").rename(folder / "results" / "small")

    hold(check, effort, 150, command=st.sampled_from(READERS), storage=storages)


@efforts
def test_words_in_place_of_sweeps_columns_and_limits(folder: Path, effort: str) -> None:
    def check(form: list[str], word: str, other: str) -> None:
        answer([part.format(word=word, other=other) for part in form])

    forms = [
        ["status", "{word}"],
        ["status", "--{word}"],
        ["results", "{word}"],
        ["results", "small", "--sort={word}", "--top={other}"],
        ["results", "small", "--csv={word}"],
        ["results", "small", "--best={word}"],
        ["verify", "{word}"],
        ["mv", "small", "{word}"],
        ["mv", "{word}", "{other}", "--yes"],
        ["rm", "{word}", "--yes"],
        ["plot", "{word}"],
        ["plot", "small.yaml", "--scale={word}"],
        ["plot", "small.yaml", "--output={word}"],
        ["plot", "fig3", "--docs={word}"],
        ["figures", "--scale={word}"],
        ["reproduce", "{word}"],
        ["reproduce", "fig19", "--decide={word}"],
        ["run", "{word}"],
        ["run", "small.yaml", "--max-concurrent={word}", "--dry-run"],
        ["run", "small.yaml", "--time-limit={word}", "--dry-run"],
        ["bench", "{word}"],
        ["data", "{word}"],
        ["completion", "{word}"],
        ["{word}", "{other}"],
        ["film", "--frictions={word}", "--out=x.mp4"],
        ["film", "--seconds={word}", "--out=x.mp4"],
        ["film", "--steps={word}", "--seed={other}", "--out=x.mp4"],
        ["film", "--out={word}.mp4"],
        ["submit", "small.yaml", "--address={word}", "--storage=/shared"],
        ["submit", "small.yaml", "--working-dir={word}", "--address=x", "--storage=/shared"],
        ["logs", "{word}", "--address={other}"],
        ["stop", "{word}", "--address={other}"],
        ["status", "--address={word}"],
    ]
    # Nobody is asked over the network here, and words of urls and of benchmarks would do what they say.
    words = (scalars.map(str) | texts).filter(lambda word: "http" not in word and word not in ("mnist", "small"))
    hold(check, effort, 150, form=st.sampled_from(forms), word=words, other=words)


@efforts
def test_addresses(folder: Path, effort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that stands before the connection: nothing is looked up by name."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    parts = st.sampled_from(
        ["127.0.0.1:1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:x", "[::1]:1", ":1", "//", "\0"]
    )
    urls = st.sampled_from(
        ["http://", "https://", "ray://", "http://127.0.0.1:1", "http://[::1", "http://127.0.0.1:x", "http://\0"]
    )

    def check(address: str, command: list[str]) -> None:
        assert answer([*command, f"--address={address}"]).code == 2

    jobs = st.sampled_from([["logs", "x"], ["stop", "x"], ["status"], ["submit", "small.yaml", "--storage=/shared"]])
    hold(check, effort, 8, address=urls, command=jobs)
    # Each waits for an answer.
    hold(check, "short", 5, address=parts | urls, command=st.just(["run", "small.yaml", "--set", "sweep=new"]))
    assert not (folder / "results" / "new").exists()


@efforts
def test_data_folders(folder: Path, effort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mnist_files.DATASETS, "mnist", mnist_files.DATASETS["mnist"]._replace(sources={}))
    raw = folder / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)

    def check(place: str, content: bytes) -> None:
        for name in mnist_files.DATASETS["mnist"].checksums:
            (raw / name).write_bytes(content)
        assert answer(["data", "mnist", f"--dir={place}"]).code == 2

    places = st.sampled_from(PLACES) | st.just("data") | texts
    hold(check, effort, 60, place=places, content=st.binary(max_size=20))
