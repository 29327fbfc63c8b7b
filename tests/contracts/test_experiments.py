"""Every experiment and every figure: names agree, smoke mode runs, figures draw from what it wrote."""

import os
import re

import pytest

from experiments import EXPERIMENTS
from figures.catalog import FIGURES
from figures.style import render
from simlab.core.results import Results
from simlab.studies.experiment import execute
from simlab.studies.loading import find_figures, load_experiment


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_says_what_it_is(name):
    experiment = load_experiment(name)
    assert experiment.name == name
    assert experiment.question.endswith("?")
    assert experiment.decision_rule
    assert experiment.minutes > 0


@pytest.fixture(scope="session")
def results_folder(tmp_path_factory):
    """One for all smoke runs, so that what several experiments ask for is computed once."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "smoke"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("quick_programs")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke_mode_runs_and_its_figures_draw(name, results_folder, tmp_path):
    experiment = load_experiment(name)
    results = execute(experiment, results_folder / name, smoke=True)
    assert results.manifest["config"]["smoke"]
    for figure in find_figures(name):
        for path in render(FIGURES[figure].draw, results, tmp_path / "out", figure):
            assert path.stat().st_size > 1000


@pytest.mark.parametrize("figure", FIGURES)
def test_figure_source_is_complete(figure):
    source = FIGURES[figure]
    assert source.experiment in EXPERIMENTS
    assert source.title


def test_committed_results_are_finished_clean_and_small():
    from simlab.core.paths import committed_results

    folder = committed_results("")
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        results = Results(path)
        manifest = results.manifest
        assert manifest["name"] == path.name
        assert not manifest["config"]["smoke"]
        assert set(results.table_names) == set(manifest["tables"])
        assert all(table.stat().st_size < 1_000_000 for table in path.glob("*.parquet"))


def test_stored_results_are_those_that_make_results_names():
    from simlab.core.paths import committed_results

    folder = committed_results("")
    if not folder.is_dir():
        pytest.skip("no results travel with an installed package")
    gpu_results = re.search(
        r"^GPU_RESULTS := (.+)$", (folder.parents[1] / "Makefile").read_text(), re.MULTILINE
    )
    assert gpu_results
    stored = {path.name for path in folder.iterdir()} - {"cache"}
    assert set(gpu_results[1].split()) <= stored <= set(EXPERIMENTS)
