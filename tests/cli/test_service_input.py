"""Sweeps, figures and jobs asked for in ways that cannot work: one line, the right exit code, nothing written, at once."""

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up_results import world
from sweep_help import SMALL

from cbp_ray.cli import display, main
from cbp_ray.figures import reproduce as reproduce_module
from cbp_ray.results import Store
from cbp_ray.sweeps import load_sweep
from cbp_ray.sweeps.cluster import ClusterLost
from cbp_ray.sweeps.resolved import record_sweep


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which holds a sweep and nothing else."""
    (tmp_path / "small.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    """The place that the one line on stderr names."""
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("cbp-ray "), error
    return error.rstrip("\n").split(": ")[1]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """An HTTP server on loopback that answers with the test's parameter: JSON by path, else 404; a number is a status."""
    answers: dict[str, object] = getattr(request, "param", {})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path, 404)
            self.send_response(answer if isinstance(answer, int) else 200)
            self.end_headers()
            self.wfile.write(b"<html>" if isinstance(answer, int) else json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            return

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


@pytest.mark.parametrize("command", [["run", "small.yaml"], ["reproduce", "fig19", "--scale", "smoke"]], ids=lambda c: c[0])
@pytest.mark.parametrize("storage", [[], ["--storage", "here/results"]], ids=["default", "relative"])
def test_a_job_may_not_store_its_results_in_a_folder_that_goes_with_it(
    command: list[str],
    storage: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert main([*command, *storage]) == 2
    assert refused(capsys) == "--storage"
    if command[0] == "reproduce":
        assert main([*command, "--storage", str(folder / "results"), "--output", "figures"]) == 2
        assert refused(capsys) == "--output"
    assert [path.name for path in folder.iterdir()] == ["small.yaml"]


@pytest.mark.parametrize("command", [["run", "small.yaml"], ["reproduce", "fig19", "--scale", "smoke"]], ids=lambda c: c[0])
def test_a_cluster_that_dies_is_one_line_and_exit_code_1(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise ClusterLost("Ray's raylet died; run the same command again to go on")

    monkeypatch.setattr("cbp_ray.sweeps.run.run_sweep", lost)
    assert main(command) == 1
    assert refused(capsys) == "Ray's raylet died; run the same command again to go on"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:notaport", "127.0.0.1", "127.0.0.1:999999"])
def test_an_address_where_nobody_listens_is_refused_at_once(
    address: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray  # noqa: F401 - the time is that of the connection, not of the import

    begun = time.monotonic()
    assert main(["run", "small.yaml", "--address", address]) == 2
    assert time.monotonic() - begun < 10
    assert refused(capsys) == "address"
    assert [path.name for path in folder.iterdir()] == ["small.yaml"]


@pytest.mark.parametrize("command", [["status"], ["plot", "fig3"]], ids=lambda c: c[0])
@pytest.mark.parametrize("storage", ["nonsense://x", "small.yaml", "file://{}/small.yaml"])
def test_what_cannot_be_a_storage_is_refused_by_those_who_read(
    command: list[str], storage: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--storage", storage.format(folder)]) == 2
    assert refused(capsys) == "--storage"


def test_a_storage_that_is_not_there_has_no_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--storage", "nowhere"]) == 0
    assert capsys.readouterr().out.startswith("no sweeps in nowhere")


def test_figures_of_results_elsewhere_are_drawn_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("plot", "reproduce"):
        assert main([command, "fig3", "--storage", "mock:///x/y"]) == 2
        assert refused(capsys) == "--output"
        assert main([command, "fig3", "--storage", "results", "--output", "s3://x/y"]) == 2
        assert refused(capsys) == "--output"
    assert main(["plot", "fig3", "--storage", "mock:///x/y", "--output", "drawn"]) == 2
    assert refused(capsys).startswith("results in ")
    assert [path.name for path in folder.iterdir()] == ["small.yaml"]
    monkeypatch.setattr(reproduce_module, "read_settings", lambda sweep, storage: world(sweep.source, True))
    assert main(["plot", "fig3", "--storage", "mock:///x/y", "--output", "drawn"]) == 0
    assert main(["plot", "fig3", "--storage", f"file://{folder}/results"]) == 0
    for drawn in ("drawn", "results/figures"):
        assert (folder / drawn / "paper" / "fig3.png").exists()
    assert {path.name for path in folder.iterdir()} == {"small.yaml", "drawn", "results"}


ABOUT_JOBS = [
    ["submit", "small.yaml", "--storage", "/shared"],
    ["logs", "raysubmit_0"],
    ["logs", "raysubmit_0", "--follow"],
    ["stop", "raysubmit_0"],
    ["status"],
]
VERSION = {"/api/version": {"ray_version": "2.60.0", "version": "4"}}


@pytest.mark.parametrize("server", [{}, {"/api/version": 500}, {"/api/version": []}], indirect=True, ids=["404", "500", "json"])
@pytest.mark.parametrize("arguments", ABOUT_JOBS, ids=" ".join)
def test_a_server_that_is_not_rays_is_refused(arguments: list[str], server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--address", server]) == 2
    assert refused(capsys) == "--address"


@pytest.mark.parametrize("arguments", ABOUT_JOBS, ids=" ".join)
def test_an_address_that_is_no_url_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--address", "http://127.0.0.1:notaport"]) == 2
    assert refused(capsys) == "--address"


@pytest.mark.parametrize(
    "server", [VERSION | {"/api/jobs/": 500, "/api/jobs/raysubmit_0": 500}], indirect=True, ids=["failing"]
)
@pytest.mark.parametrize("arguments", ABOUT_JOBS[1:], ids=" ".join)
def test_a_server_that_fails_is_one_line_and_exit_code_1(
    arguments: list[str], server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--address", server]) == 1
    assert refused(capsys) == f"{server} failed"


def job(number: int, **more: object) -> dict[str, object]:
    about = {
        "type": "SUBMISSION",
        "submission_id": f"raysubmit_{number}abcdefghijk",
        "entrypoint": "python -m cbp_ray run a.yaml",
    }
    return about | {"status": "RUNNING", "start_time": 1_000_000_000_000 + number} | more


@pytest.mark.parametrize(
    "server", [VERSION | {"/api/jobs/": [job(1, status="SUCCEEDED", end_time=1_000_000_002_500), job(2)]}], indirect=True
)
def test_status_lists_the_jobs_of_a_server_the_latest_first(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display, "LOG_WIDTH", 80)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["status", "--address", server]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in shown) <= 80
    rows = [line.split() for line in shown if "raysubmit" in line]
    assert [row[:2] for row in rows] == [["raysubmit_2abcdefghijk", "RUNNING"], ["raysubmit_1abcdefghijk", "SUCCEEDED"]]
    assert main(["status", "--address", server, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(each["state"], each["started"], each["ended"]) for each in listed] == [
        ("RUNNING", 1_000_000_000.002, None),
        ("SUCCEEDED", 1_000_000_000.001, 1_000_000_002.5),
    ]


@pytest.mark.parametrize("server", [VERSION | {"/api/jobs/": []}], indirect=True)
def test_status_lists_jobs_or_sweeps_but_not_both(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--address", server]) == 0
    assert capsys.readouterr().out == f"no jobs at {server}\n"
    assert main(["status", "small", "--address", server]) == 2
    assert refused(capsys) == "--address"


def test_status_shows_whole_names_on_80_columns(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "example_grid"
    (folder / "small.yaml").write_text(SMALL.replace("sweep: small", f"sweep: {name}"))
    sweep = load_sweep("small.yaml", seeds="0:100000")
    record_sweep(sweep, Store("results", name))
    monkeypatch.setattr(display, "LOG_WIDTH", 80)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert [name, "small", "incomplete", "0/300000", "0", "none"] in [line.split() for line in shown.splitlines()]
