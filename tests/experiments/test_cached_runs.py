"""Runs that the result cache holds, whatever computed them."""

from typing import Any, cast

import numpy as np

from experiments.arms.chains import NONE
from experiments.arms.settings import on_chains
from experiments.studies import runs
from simlab.studies.experiment import ExperimentContext
from simlab.sweeps import SweepResult
from simlab.sweeps.result_cache import ResultCache
from simlab.sweeps.tables import run_tables, runs_table


def test_cached_runs_keep_their_processor_family(tmp_path, monkeypatch):
    cache, wanted = ResultCache(tmp_path / "cache"), runs.block_specs(on_chains(NONE), None, smoke=True)[:3]
    for spec, family in zip(wanted, ({"processor_family": "X"}, {"processor_family": "Y"}, {}), strict=True):
        tables = run_tables(
            f"{spec.seed}", {"seed": spec.seed, "steps": 1}, {"reward": np.ones(1, np.float32)}
        )
        tables.record.update(family)
        cache.write(f"{spec.seed}", tables)
    table = runs_table([cache.record(f"{spec.seed}") for spec in wanted], ["a"] * 3)
    stored = SweepResult(cache.folder, table)
    stored.manifest = cast(Any, {"timings": {}})
    monkeypatch.setattr(runs, "sweep", lambda *_, **__: stored)
    frames = runs.run_sweep(ExperimentContext("cached", tmp_path / "out", smoke=True), wanted)
    assert frames["runs"]["processor_family"].tolist() == ["X", "Y", "unknown"]
