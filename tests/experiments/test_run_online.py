"""`run_online`: configs, curves, checkpoints, and resuming to the last bit."""

import json
import re

import numpy as np
import pytest
from long_tests import first

from cbp_ray.errors import InputError
from cbp_ray.experiments import OnlineConfig, iterate_online, load_checkpoint, run_online, save_checkpoint
from cbp_ray.problems import BitFlippingConfig

METRICS = BitFlippingConfig.metrics
CBP = {"name": "cbp", "replacement_rate": "1e-3", "maturity_threshold": 10}
CONFIG = {
    "problem": {"flip_period": 300},
    "algorithm": CBP,
    "optimizer": {"name": "adam", "step_size": 0.003},
    "examples": 1_700,
    "bin_size": 500,
}


def test_curves_have_a_row_per_run_and_bin():
    curves = run_online(CONFIG, seeds=[3, 5, 8])
    assert curves.examples.tolist() == [500, 1000, 1500, 1700]
    assert list(curves.metrics) == list(METRICS)
    assert all(values.shape == (3, 4) for values in curves.metrics.values())
    table = curves.to_table()
    assert table.num_rows == 12
    assert table.column_names == ["seed", "bin", "examples", *METRICS]
    assert table["seed"].to_pylist()[4] == 5
    np.testing.assert_array_equal(table["error"].to_numpy().reshape(3, 4), curves.error)
    np.testing.assert_allclose(curves.standard_error(), curves.error.std(0, ddof=1) / np.sqrt(3))


@pytest.mark.parametrize("engine", ["kernel", "torch"])
def test_progress_sees_every_bin(engine):
    seen = []
    run_online(CONFIG, [0], engine, progress=lambda point: seen.append((point.index, point.bins, point.examples)))
    assert seen == [(0, 4, 500), (1, 4, 1000), (2, 4, 1500), (3, 4, 1700)]


@pytest.mark.parametrize("engine", ["kernel", "torch"])
@pytest.mark.parametrize(
    "algorithm",
    [
        CBP,
        CBP | {"preset": "nature2024", "replacement": "bernoulli", "utility": "random"},
        {"name": "online_norm"},
        {"name": "l2", "weight_decay": 0.001},
        {"name": "linear"},
    ],
    ids=lambda a: a.get("preset", a["name"]),
)
@pytest.mark.parametrize("optimizer", first(1, ["sgd", "adam"]))
def test_resumed_run_equals_unbroken_run_bit_for_bit(tmp_path, engine, algorithm, optimizer):
    config = CONFIG | {"algorithm": algorithm, "optimizer": {"name": optimizer, "step_size": 0.003}}
    seeds = [4, 2] if engine == "kernel" else [4]
    if engine == "torch":
        config = config | {"examples": 340, "bin_size": 100}
    whole = list(iterate_online(config, seeds, engine))
    half = iterate_online(config, seeds, engine)
    next(half)
    save_checkpoint(tmp_path / "run.npz", next(half).checkpoint())
    rest = list(iterate_online(config, seeds, engine, load_checkpoint(tmp_path / "run.npz")))
    assert [point.index for point in rest] == [2, 3]
    for ref, comp in zip(whole[2:], rest, strict=True):
        for name in METRICS:
            np.testing.assert_array_equal(comp.metrics[name], ref.metrics[name])
    ref, comp = whole[-1].checkpoint(), rest[-1].checkpoint()
    assert set(ref) == set(comp)
    for name in ref:
        np.testing.assert_array_equal(comp[name], ref[name])


def test_a_run_can_be_extended():
    *_, last = iterate_online(CONFIG | {"examples": 1_000}, [1])
    longer = run_online(CONFIG, [1], state=last.checkpoint())
    np.testing.assert_array_equal(longer.error, run_online(CONFIG, [1]).error[:, 2:])


def test_checkpoints_of_something_else_are_refused():
    point = next(iter(iterate_online(CONFIG, [1])))
    state = point.checkpoint()
    for arguments in ((CONFIG | {"optimizer": {"name": "sgd", "step_size": 0.1}}, [1]), (CONFIG, [2]), (CONFIG, [1], "torch")):
        with pytest.raises(InputError, match=r"^state: "):
            iterate_online(*arguments, state=state)
    *_, last = iterate_online(CONFIG, [1])
    with pytest.raises(InputError, match=r"^state: "):
        iterate_online(CONFIG | {"examples": 5_000}, [1], state=last.checkpoint())


@pytest.mark.parametrize("engine", ["kernel", "torch"])
def test_checkpoints_that_come_too_late_are_refused(engine):
    """The runs hold one state only. The last bin has no successor, so its checkpoint never comes too late."""
    config = CONFIG | {"examples": 120, "bin_size": 50}
    first, second, last = iterate_online(config, [1], engine)
    for late in (first, second):
        with pytest.raises(RuntimeError, match=r"^checkpoint: "):
            late.checkpoint()
    assert last.checkpoint()["bins"] == 3


@pytest.mark.parametrize("engine", ["kernel", "torch"])
@pytest.mark.parametrize("examples", [120, 150])
def test_a_finished_run_has_nothing_left_to_resume(engine, examples):
    config = CONFIG | {"examples": examples, "bin_size": 50}
    *_, last = iterate_online(config, [1], engine)
    state = last.checkpoint()
    assert list(iterate_online(config, [1], engine, state)) == []
    assert run_online(config, [1], engine, state=state).error.shape == (1, 0)
    with pytest.raises(InputError, match=r"^state: "):
        iterate_online(config | {"examples": 60}, [1], engine, state)


@pytest.mark.parametrize("engine", ["kernel", "torch"])
def test_incomplete_checkpoints_are_refused(engine):
    config = CONFIG | {"examples": 60, "bin_size": 50}
    state = next(iter(iterate_online(config, [1], engine))).checkpoint()
    for name in state:
        with pytest.raises(InputError, match=r"^state: "):
            iterate_online(config, [1], engine, {key: value for key, value in state.items() if key != name})
    with pytest.raises(InputError, match=r"^state: "):
        iterate_online(config, [1], engine, state | {"config": np.array("{}")})


def test_checkpoint_files_are_atomic_and_plain(tmp_path):
    path = tmp_path / "deep" / "run.npz"
    state = next(iter(iterate_online(CONFIG, [1]))).checkpoint()
    save_checkpoint(path, state)
    with pytest.raises(ValueError, match="Object arrays"):
        save_checkpoint(path, state | {"bad": np.array([object()])})
    assert [p.name for p in path.parent.iterdir()] == ["run.npz"]
    assert set(load_checkpoint(path)) == set(state)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"^checkpoint: "):
        load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"exampels": 3}, "exampels"),
        ({"algorithm": {"name": "cbp"}}, "algorithm.replacement_rate"),
        ({"algorithm": {"name": "cpb"}}, "algorithm.name"),
        ({"algorithm": {}}, "algorithm"),
        ({"algorithm": {"name": "bp", "weight_decay": 1}}, "algorithm.weight_decay"),
        ({"optimizer": {"name": "sgd", "stepsize": 1}}, "optimizer.stepsize"),
        ({"optimizer": {"name": "sgd", "step_size": "big"}}, "optimizer.step_size"),
        ({"optimizer": {"name": "sgd", "step_size": float("nan")}}, "optimizer.step_size"),
        ({"optimizer": {"name": "sgd", "step_size": True}}, "optimizer.step_size"),
        ({"problem": {"flipping_bits": 30}}, "problem.flipping_bits"),
        ({"problem": {"flip_bits": 3}}, "problem.flip_bits"),
        ({"problem": {"cbp": 1}}, "problem.cbp"),
        ({"problem": {"beta": True}}, "problem.beta"),
        ({"network": {"activation": "than"}}, "network.activation"),
        ({"network": {"hidden": []}}, "network.hidden"),
        ({"network": {"hidden": [True]}}, "network.hidden.0"),
        ({"network": {"sgd": 1}}, "network.sgd"),
        ({"network": {"name": "bp"}}, "network.name"),
        ({"bp": 1}, "bp"),
        ({"algorithm": {"name": "bp", "bp": 1}}, "algorithm.bp"),
        ({"algorithm": CBP | {"adam": 1}}, "algorithm.adam"),
        ({"algorithm": CBP | {"replacement_rate": False}}, "algorithm.replacement_rate"),
        *(({"examples": value}, "examples") for value in (True, "1.5e0", "1e400", "many", 1000.5, "0e3", 0)),
    ],
)
def test_bad_configs_are_refused_in_one_line(change, field):
    with pytest.raises(InputError, match=rf"^{re.escape(field)}: [^\n]*$"):
        run_online(CONFIG | change, [0])


@pytest.mark.parametrize(
    "seeds", [[], [-1], [2**64], [1.7], [1.0], "12", b"12", [True], 5, None, ["a"], ["1"], [None], [0, 1, 0]]
)
def test_bad_seeds_are_refused(seeds):
    for function in (run_online, iterate_online):
        with pytest.raises(InputError, match=r"^seeds: [^\n]*$"):
            function(CONFIG, seeds)


def test_a_run_that_diverges_is_told():
    config = CONFIG | {"optimizer": {"name": "sgd", "step_size": 1e6}, "examples": 500}
    with pytest.warns(RuntimeWarning, match=r"^run_online: 2 of 2 runs diverged: error is not finite"):
        assert not np.isfinite(run_online(config, [0, 1]).error).all()


def test_seeds_may_be_integers_of_numpy():
    assert run_online(CONFIG, np.array([7, 3], dtype=np.uint64)).seeds == (7, 3)


def test_bad_engine_is_refused():
    with pytest.raises(InputError, match=r"^engine: "):
        run_online(CONFIG, [0], engine="gpu")


def test_config_survives_json_and_is_frozen():
    config = OnlineConfig.make(CONFIG)
    assert OnlineConfig.make(json.loads(config.model_dump_json())) == config
    assert OnlineConfig.make(config) is config
    with pytest.raises(ValueError, match="frozen"):
        config.examples = 3


@pytest.mark.parametrize("thousand", [1_000, 1e3, "1e3", "1E+3", "1000", "1000.0", " 1e3 ", "1_000"])
def test_whole_numbers_may_be_written_in_any_notation(thousand):
    """YAML reads 1e3 as text and 1.0e+3 as a float."""
    config = OnlineConfig.make(
        CONFIG
        | {"examples": thousand, "algorithm": CBP | {"maturity_threshold": thousand}, "network": {"hidden": [thousand]}}
        | {"problem": {"inputs": 1_000, "flipping_bits": thousand}}
    )
    found = (config.examples, config.algorithm.maturity_threshold, config.network.hidden[0], config.problem.flipping_bits)
    assert found == (1_000,) * 4
    assert all(type(value) is int for value in found)


def test_every_setting_is_described():
    def models(schema):
        return [schema, *schema.get("$defs", {}).values()]

    for schema in models(OnlineConfig.model_json_schema()):
        for name, field in schema["properties"].items():
            assert "description" in field or "$ref" in field, name


@pytest.mark.parametrize(("preset", "utility"), [("paper", "overall"), ("nature2024", "contribution")])
def test_unset_utility_is_the_presets(preset, utility):
    config = OnlineConfig.make(CONFIG | {"algorithm": CBP | {"preset": preset}})
    assert config.algorithm.utility == utility


def test_count_of_replacements_is_rate_times_units():
    curves = run_online(CONFIG | {"examples": 20_000, "bin_size": 10_000}, range(3))
    # The first 10 examples have nobody eligible.
    assert curves["replacements"].sum(axis=1).tolist() == [99, 99, 99]


def test_large_seeds_are_seeds():
    curves = run_online(CONFIG, [2**64 - 1, 2**63])
    assert curves.error[0, 0] != curves.error[1, 0]
    assert curves.to_table()["seed"].to_pylist()[0] == 2**64 - 1


@pytest.mark.slow
def test_backprop_gets_worse_and_continual_backprop_does_not():
    """Section 3 and 4 of the paper at its full length, with 100 runs."""
    sgd = {"name": "sgd", "step_size": 0.01}
    bp = run_online({"algorithm": {"name": "bp"}, "optimizer": sgd}).mean()
    cbp = run_online({"algorithm": {"name": "cbp", "replacement_rate": 1e-4}, "optimizer": sgd}).mean()
    assert bp.min() < 0.55 and bp[-1] > 0.9
    assert cbp[5:].max() < 0.55
