"""The commands that look after stored sweeps: damage is found and made good, names change, and nothing goes unasked."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_up_results import store_made_up

from cbp_ray.cli import main
from cbp_ray.cli.options import Duration, limited_time
from cbp_ray.results import Block, Store, load
from cbp_ray.results.tensorboard import write_image
from cbp_ray.results.verify import cut_short, remove_block
from cbp_ray.sweeps import Sweep, load_sweep, unfinished
from cbp_ray.sweeps.plan import find_missing
from cbp_ray.sweeps.progress import Heartbeat, Totals
from cbp_ray.sweeps.status import statuses

SMALL = """
sweep: small
seeds: 0:6
base: {optimizer: {name: sgd, step_size: 0.01}, examples: 300, bin_size: 100}
groups:
  bp: {algorithm: {name: bp}}
  cbp: {algorithm: {name: cbp, replacement_rate: 1e-3}}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    (tmp_path / "small.yaml").write_text(SMALL)
    return load_sweep(tmp_path / "small.yaml")


@pytest.fixture
def store(sweep: Sweep, tmp_path: Path) -> Store:
    """Twelve runs in four blocks, the checkpoint of a fifth, a TensorBoard file, and a sign of life from an hour ago."""
    store = store_made_up(sweep, tmp_path / "results", [0.9, 0.4])
    block = Block(sweep.configurations[0].config, sweep.engine, (6, 7))
    curves = store.read_curves(block.config, (0, 1))
    unfinished.save(store, block, {"weights": np.arange(100.0)}, curves)
    write_image(store, "figure", b"\x89PNG" + bytes(40))
    Heartbeat(store, "small", Totals(4, 12, 0, 1, 1.0)).beat("finished", force=True)
    return store


def path_of(store: Store) -> Path:
    assert store.folder.local is not None
    return store.folder.local


def location(store: Store) -> list[str]:
    return ["--storage", store.storage.location]


def first(store: Store, pattern: str) -> Path:
    return min(path_of(store).glob(pattern))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(byte ^ 0xFF for byte in content[middle : middle + 8])
    path.write_bytes(content)


def swap(path: Path) -> None:
    """Puts another block's content there."""
    path.write_bytes(max(path.parent.iterdir()).read_bytes())


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        *(("curves/*.parquet", damage) for damage in (cut, empty, swap)),
        *(("runs/*.parquet", damage) for damage in (cut, empty, swap)),
        ("curves/*.parquet", lambda path: path.write_bytes(b"nonsense")),
        *(("checkpoints/*.npz", damage) for damage in (cut, empty, garble)),
        *(("sweeps/*.json", damage) for damage in (cut, empty)),
        ("progress/*.json", cut),
        *(("tensorboard/*/events*", damage) for damage in (cut, empty, garble)),
        ("sweep.yaml", empty),
    ],
)
def test_damage_is_named_removed_when_told_and_then_missing(
    pattern: str, damage: Callable[[Path], None], sweep: Sweep, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *location(store)]) == 0
    assert "all whole" in capsys.readouterr().out
    path = first(store, pattern)
    damage(path)
    assert main(["verify", "small", *location(store), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    # Of a block both files go, but only what is damaged is named.
    assert [each["path"] for each in found["damaged"]] == [str(path.relative_to(path_of(store)))]
    assert path.exists()
    assert main(["verify", "small", *location(store), "--remove"]) == 0
    assert f"small/{path.relative_to(path_of(store))}: " in capsys.readouterr().out
    assert not path.exists()
    assert main(["verify", *location(store)]) == 0
    lost = 3 if path.parent.name in ("curves", "runs") else 0
    assert find_missing(sweep, store).stored_runs == 12 - lost


def test_a_runs_file_that_is_gone_is_noticed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    first(store, "runs/*").unlink()
    assert main(["verify", *location(store)]) == 1
    assert "runs/ is missing" in capsys.readouterr().out


@pytest.mark.parametrize("damage", [cut, empty, Path.unlink])
@pytest.mark.parametrize("folder", ["curves", "runs"])
def test_files_that_are_not_whole_don_t_count_as_done(folder: str, damage: Callable[[Path], None], store: Store) -> None:
    path = first(store, f"{folder}/*")
    damage(path)
    (status,) = statuses(store)
    assert (status.state, status.done) == ("incomplete", 9)
    if folder == "runs" or path.exists():
        assert status.warnings == [f"{path.stem} is damaged; run the sweep again, which redoes it"]
        assert [str(name) for name in cut_short(store)] == [path.stem]
        remove_block(store, *cut_short(store))
    assert cut_short(store) == [] and len(store.names()) == 3


def test_damaged_results_are_one_line_that_says_what_to_do(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    cut(first(store, "curves/*"))
    for command in (["results", "small"], ["plot", str(path_of(store).parents[1] / "small.yaml")]):
        assert main([*command, *location(store)]) == 2
        error = capsys.readouterr().err
        assert "curves/" in error and "cbp-ray verify --remove" in error and error.count("\n") == 1


def test_a_moved_sweep_goes_on_under_its_new_name(
    sweep: Sweep, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = load(store.storage.location, "small").configurations
    assert main(["mv", "small", "larger", *location(store), "--yes"]) == 0
    assert not path_of(store).exists()
    moved = Store(store.storage.location, "larger")
    assert load(moved.storage.location, "larger").configurations == before
    again = load_sweep(path_of(moved) / "sweep.yaml")
    assert (again.name, again.configurations) == ("larger", sweep.configurations)
    assert find_missing(again, moved).stored_runs == 12
    (row,) = statuses(moved)
    assert (row.sweep, row.state) == ("larger", "complete")
    capsys.readouterr()
    assert main(["mv", "small", "larger", *location(store), "--yes"]) == 2
    assert capsys.readouterr().err.startswith("cbp-ray mv: SWEEP: ")


def test_removing_and_moving_ask_first(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr("click.confirm", lambda question: asked.append(question))
    assert main(["rm", "small", *location(store)]) == 1
    assert main(["mv", "small", "other", *location(store)]) == 1
    assert ["12 runs" in question for question in asked] == [True, True]
    assert find_missing(load_sweep(path_of(store) / "sweep.yaml"), store).stored_runs == 12
    monkeypatch.setattr("click.confirm", lambda question: True)
    assert main(["rm", "small", *location(store)]) == 0
    assert not path_of(store).exists()


@pytest.mark.parametrize("command", [["rm", "small"], ["mv", "small", "other"], ["verify", "small", "--remove"]])
def test_a_sweep_that_runs_is_left_alone(command: list[str], store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    heartbeat = Heartbeat(store, "small", Totals(4, 12, 0, 1, 1.0))
    heartbeat.beat(force=True)
    empty(first(store, "curves/*"))
    assert main([*command, *["--yes"] * (command[0] != "verify"), *location(store)]) == 2
    error = capsys.readouterr().err
    assert "runs, got 'small'" in error and error.count("\n") == 1
    assert len(list(path_of(store).glob("curves/*"))) == 4
    # One that died an hour ago is not one that runs.
    path = first(store, "progress/*")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"time": time.time() - 3600}))
    assert main([*command, *["--yes"] * (command[0] != "verify"), *location(store)]) == 0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["rm", "smal"], "rm: SWEEP"),
        (["rm", "figures"], "rm: SWEEP"),
        (["verify", "smal"], "verify: SWEEP"),
        (["mv", "small", "a/b"], "mv: NEW"),
        (["mv", "small", "figures"], "mv: NEW"),
        (["mv", "small", "small"], "mv: NEW"),
    ],
)
def test_bad_names_are_refused(arguments: list[str], field: str, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, *location(store), *["--yes"] * (arguments[0] != "verify")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"cbp-ray {field}: ") and error.count("\n") == 1


def test_without_an_answer_nothing_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody(prompt: str = "") -> str:
        raise EOFError

    monkeypatch.setattr("click.termui.visible_prompt_func", nobody)
    assert main(["rm", "small", *location(store)]) == 2
    assert "--yes: " in capsys.readouterr().err and path_of(store).exists()


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30min", 1800), ("2h", 7200), ("1.5h", 5400), ("1h30m", 5400), ("1d", 86_400)]
)
def test_a_time_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "90", "2 hours", "h", "-1h", "0s", "1h!", "nan"])
def test_a_time_without_a_unit_is_refused(text: str, sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "small.yaml"), "--storage", str(tmp_path / "out"), f"--time-limit={text}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("cbp-ray run: --time-limit: ") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_what_ends_within_its_time_is_not_interrupted() -> None:
    # Ray, in tests before, may have put a handler of its own there.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with limited_time(0.05):
        pass
    time.sleep(0.1)
    with pytest.raises(KeyboardInterrupt), limited_time(0.05):
        time.sleep(10)


def test_a_dry_run_counts_with_the_trials_that_may_run_at_once(
    sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(tmp_path / "small.yaml"), "--storage", str(tmp_path), "--dry-run", "--json"]
    assert main([*arguments, "--max-concurrent", "1", "--seeds", "1,3:5"]) == 0
    estimate = json.loads(capsys.readouterr().out)
    assert (estimate["cores"], estimate["runs"]) == (1, 6)
    assert main([*arguments, "--max-concurrent", "0"]) == 2
