"""The default number of runs per batch: constant on a CPU, bounded by the memory of a GPU."""

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.sweeps import batch_size, recipe_of, run_config
from simlab.sweeps.batch_size import RUNS_PER_BATCH_ON_GPU, SAFETY, bytes_per_run, fit_runs
from simlab.sweeps.grids import as_grid
from simlab.sweeps.sweep import prepare
from tests.sweeps.small import BASE

LARGE = {"model": {"name": "tiny-dense", "hidden_size": 512, "intermediate_size": 2048}}


def fail():
    raise AssertionError("read")
    yield


@pytest.fixture
def small_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(batch_size, "_device_memory", lambda: 1e9)


@given(need=st.floats(1.0, 1e12), memory=st.floats(1.0, 1e12))
def test_batch_fits_into_the_memory(need, memory):
    runs = fit_runs(need, memory)
    assert 1 <= runs <= RUNS_PER_BATCH_ON_GPU
    assert runs == 1 or runs * SAFETY * need <= memory * (1 + 1e-9)
    assert runs == RUNS_PER_BATCH_ON_GPU or (runs + 1) * SAFETY * need >= memory * (1 - 1e-9)


def test_unknown_memory_does_not_bound_the_batch():
    assert fit_runs(1e12, None) == RUNS_PER_BATCH_ON_GPU


def test_cpu_reads_no_recipe():
    assert batch_size.default_runs_per_batch(fail()) == 4


@pytest.mark.usefixtures("small_gpu")
def test_largest_model_of_a_grid_bounds_the_batch(tmp_path):
    grids = {"seed": [0, 1]}, {"model": [BASE["model"], LARGE["model"]]}
    alone, both = (prepare(BASE, as_grid(each), tmp_path, None)[0].runs_per_batch for each in grids)
    assert alone == RUNS_PER_BATCH_ON_GPU
    assert 1 <= both < alone


@pytest.mark.usefixtures("small_gpu")
def test_bad_point_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"steps.*\(at \{'steps': 0\}\)"):
        prepare(BASE, as_grid({"steps": [0, 10]}), tmp_path, None)


@pytest.mark.parametrize(
    "change",
    [LARGE, {"task": {"name": "chain", "difficulty": 64}}, {"group_size": 64}, {"kl_loss_coef": 0.1}],
    ids=["width", "length", "responses", "reference policy"],
)
def test_whatever_grows_a_run_grows_its_bytes(change):
    before, after = (bytes_per_run(recipe_of(run_config({**BASE, **each}))) for each in ({}, change))
    assert after > before
