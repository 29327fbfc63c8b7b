"""A run with a constant engine has its key and bytes from its config alone, whatever is swept beside it."""

import pytest

from simlab.engines import ENGINES
from simlab.sweeps import program as programs
from simlab.sweeps import run_config, run_key, sweep
from simlab.sweeps.grids import as_grid
from simlab.sweeps.plan import expand
from simlab.sweeps.program import program_name, swept_recipe
from simlab.sweeps.switch_objective import list_kinds
from tests.sweeps.small import BASE, RUNS_PER_BATCH, tables

CONSTANT = "f32/fp8-e4m3"
COMMON = list_kinds("common")
# Neighbors of the same structure: numbers of an edited engine, and another engine of the catalog.
EDITED = {"name": CONSTANT, "infer": {"projection": {"weights": {"format": {"mantissa_bits": 2}}}}}
NEIGHBORS = [CONSTANT, EDITED, "f32/fp8-s4-truncated"]


def sweep_engines(out, engines, seeds):
    over = {"engines": engines, "seed": seeds}
    return sweep(BASE, over, out, runs_per_batch=RUNS_PER_BATCH, workers=0)


def find_keys(engines) -> list[str]:
    return [run.key for run in expand(BASE, as_grid({"engines": engines}), RUNS_PER_BATCH)]


def test_key_does_not_depend_on_other_runs():
    (alone,) = find_keys([CONSTANT])
    assert find_keys(NEIGHBORS)[0] == alone
    assert find_keys(NEIGHBORS[::-1])[-1] == alone


@pytest.mark.parametrize("name", ENGINES)
def test_form_is_part_of_the_key(name):
    config = run_config(BASE | {"engines": f"f32/{name}"})
    traced = run_key(config, RUNS_PER_BATCH, COMMON)
    (key,) = find_keys([f"f32/{name}"])
    # Float32 has no numbers, so its two forms are one function.
    assert (key == traced) == (name in ("f32", "f32-flash", "f32-exact"))


def test_edited_engine_keeps_the_key_of_arguments():
    (key,) = find_keys([EDITED])
    assert key == run_key(run_config(BASE | {"engines": EDITED}), RUNS_PER_BATCH, COMMON)


def test_form_does_not_depend_on_the_spelling():
    spelled = BASE | {"engines": CONSTANT, "infer_mantissa_bits": 3}
    assert [run.key for run in expand(spelled, as_grid({"seed": [0]}), RUNS_PER_BATCH)] == find_keys(
        [CONSTANT]
    )


def test_program_name_names_the_constant_sides():
    pair = swept_recipe(run_config(BASE | {"engines": "bf16/vllm-bf16"}))
    assert program_name(pair) == f"{COMMON}; constant engines: train, infer"


@pytest.mark.slow
def test_bytes_do_not_depend_on_other_engines(tmp_path):
    alone = sweep_engines(tmp_path / "alone", [CONSTANT], [1])
    among = sweep_engines(tmp_path / "among", NEIGHBORS[:2], [0, 1, 2])
    (key,) = alone.runs()["run"]
    assert key in set(among.runs()["run"])
    expected, actual = tables(alone.folder), tables(among.folder)
    for name in (f"{key}.steps.parquet", f"{key}.vectors.parquet", f"{key}.json"):
        assert actual[name] == expected[name]


def test_stored_run_of_the_other_form_is_not_taken(tmp_path, monkeypatch):
    sweep_engines(tmp_path, [EDITED, CONSTANT], [0])
    with monkeypatch.context() as patch:
        patch.setattr(programs, "hold_constant", lambda engine: engine)
        traced = sweep_engines(tmp_path, [EDITED, CONSTANT], [0])
    # The edited engine has been an argument before; the other has not.
    assert traced.manifest["config"]["computed"] == 1
