"""A process that computes many compile groups does not keep the functions of all of them."""

import pytest

from simlab.sweeps import compilation, execute
from simlab.sweeps.grids import grid
from simlab.sweeps.plan import expand, make_plan
from simlab.sweeps.result_cache import ResultCache
from tests.sweeps.small import BASE

GROUPS = {"prompts_per_step": [2, 4, 6], "seed": [0, 1, 2]}


@pytest.mark.parametrize(("limit", "seen"), [(1.0, [0, 1, 0, 1, 0, 1]), (1e15, [0, 1, 2, 3, 4, 5])])
def test_work_forgets_functions_above_the_limit(tmp_path, monkeypatch, limit, seen):
    runs = expand(BASE, grid(GROUPS), 2)
    plan, cache = make_plan(runs, [run.key for run in runs], 2), ResultCache(tmp_path)
    functions, counts, finished = {}, [], set()

    def compute(batch, *_):
        counts.append(len(functions))
        functions[len(counts)] = "a function"
        finished.update(run.key for run in batch)
        cache.release(run.key for run in batch)

    monkeypatch.setattr(compilation, "_COMPILED", functions)
    monkeypatch.setattr(execute, "_compute", compute)
    monkeypatch.setattr(cache, "missing", lambda keys: [key for key in keys if key not in finished])
    execute.work(plan, cache, lambda _: None, memory_limit=limit)
    assert len(plan.groups) == 3
    assert counts == seen
