"""The Ray that our commands start: on loopback alone, with a token that only its owner can read and that is written nowhere."""

import http.client
import os
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from listening import listeners
from sweep_help import SMALL, Program, descendants

from cbp_ray.own_ray import make_token_private

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of somebody who has never used Ray."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_token_is_its_owners_alone(home: Path) -> None:
    before = os.umask(0)
    try:
        make_token_private()
    finally:
        os.umask(before)
    token = home / ".ray" / "auth_token"
    assert mode(token) == 0o600 and mode(token.parent) == 0o700
    assert len(token.read_text()) == 64
    assert [path.name for path in token.parent.iterdir()] == ["auth_token"]


def test_a_token_that_others_could_read_stays_and_is_closed_to_them(home: Path) -> None:
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o644)
    make_token_private()
    assert mode(token) == 0o600 and token.read_text() == "secret"


def test_a_token_from_elsewhere_is_left_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "mounted").write_text("secret")
    (home / "mounted").chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "mounted"))
    make_token_private()
    assert mode(home / "mounted") == 0o644 and not (home / ".ray").exists()


def test_two_processes_that_begin_together_have_one_token(home: Path) -> None:
    code = "from cbp_ray.own_ray import make_token_private as m; m()"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert [path.name for path in (home / ".ray").iterdir()] == ["auth_token"]


METRICS = b"# HELP "
"""How the numbers begin that Ray's agent gives to Prometheus, whatever it is asked for: counters, which need no token."""


def status_of(url: str) -> int | None:
    """The status that a server answers a stranger with; None if it does not speak HTTP, or gives counters."""
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return None if answer.read(len(METRICS)) == METRICS else int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException):
        return None


ASKED = ("/api/job_agent/jobs/", "/api/version", "/logs")


@pytest.mark.long
def test_a_sweep_listens_on_loopback_answers_no_stranger_and_writes_its_token_nowhere(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cbp-ray run` by somebody who has never used Ray."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    (tmp_path / "small.yaml").write_text(SMALL)
    with tempfile.TemporaryDirectory() as short:  # Ray's sockets need a short path
        monkeypatch.setenv("RAY_TMPDIR", short)
        options = ["--storage", str(tmp_path / "results"), "--set", "groups.bp.examples=200_000_000"]
        program = Program(str(tmp_path / "small.yaml"), *options)
        try:
            program.wait_for("trial_done")
            program.wait_for("trial_start", 3)
            below = dict(descendants(program.process.pid))
            found = listeners([program.process.pid, *below])
            assert any("gcs_server" in below.get(each.pid, "") for each in found)
            assert [each for each in found if not each.is_loopback] == []
            ports = {each.port for each in found}
            answers = {(port, path): status_of(f"http://127.0.0.1:{port}{path}") for port in ports for path in ASKED}
            assert {code for code in answers.values() if code is not None} <= {401, 403, 404}, answers
            assert any(code == 401 for code in answers.values()), answers
        finally:
            program.process.terminate()
            code = program.process.wait(120)
            said = program.errors()
        assert code == 130, said
        token = (home / ".ray" / "auth_token").read_text()
        assert len(token) == 64 and mode(home / ".ray" / "auth_token") == 0o600
        assert token not in said and not any(token in str(event) for event in program.events)
        written = [path for folder in (tmp_path / "results", Path(short)) for path in folder.rglob("*") if path.is_file()]
        assert any(path.suffix == ".log" for path in written)
        assert [path for path in written if token.encode() in path.read_bytes()] == []
