"""The theory experiments run in smoke mode, their tables say what they must, and their figures draw."""

import pytest

from figures.catalog import FIGURES
from figures.style import render
from simlab.studies.experiment import execute
from simlab.studies.loading import find_figures, load_experiment
from simlab.theory.correction_moments import CORRECTIONS


@pytest.mark.parametrize("name", ["theory_corrections", "theory_survival"])
def test_smoke_run_and_figure(name, tmp_path):
    experiment = load_experiment(name)
    results = execute(experiment, tmp_path / "run", smoke=True)
    assert experiment.name == name
    for figure in find_figures(name):
        paths = render(FIGURES[figure].draw, results, tmp_path, figure)
        assert all(path.stat().st_size > 1000 for path in paths)
    if name == "theory_corrections":
        table = results.table("moments")
        assert set(table.correction) == set(CORRECTIONS)
        assert (table[table.correction == "sequence IS"].bias < 1e-10).all()
        assert (table[table.correction == "none"].bias > 1e-3).all()
        ess = results.table("ess")
        six = ess[(ess.length == 6) & (ess.method == "enumeration")].fraction
        assert ((six > 0) & (six < 1)).all()
    else:
        table = results.table("survival")
        noise = table[(table.engine == "gaussian noise") & (table.mass > 1e-3)]
        rarest = noise.sort_values("low").groupby("by").mean_rho.first()
        assert rarest["train"] < 1.002 < rarest["infer"]
