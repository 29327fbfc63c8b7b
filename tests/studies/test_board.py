"""The board: precedence of evidence, agreement with tables, figures and README."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from figures.catalog import FIGURES
from figures.style import render
from simlab.core.experiment import Experiment, execute
from simlab.core.paths import committed_results
from simlab.studies import Evidence
from simlab.studies.board import UNTESTED, WORDS, board, counts, evidence, list_stored, summary
from simlab.studies.loading import load_claims, load_papers

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"theory": "identity", "softmax": "measurement"}
IDS = {"H": 20, "L": 13, "V": 7, "A": 16, "C": 16, "T": 5}


@pytest.fixture(scope="module")
def rows():
    return _by_id()


@pytest.fixture
def shop(monkeypatch, tmp_path):
    """Replace the experiments by some with the given evidence; return the folder of their results."""

    def fill(**findings):
        found = {}
        for name, says in findings.items():
            experiment = Experiment(
                name,
                "Is it so?",
                "a rule",
                lambda run: run.table("rows", [{"x": 1}]),
                1.0,
                claims=tuple(finding.claim for finding in says),
                kind=KINDS.get(name, "dynamics"),
                collect_evidence=lambda results, says=says: (results.table("rows"), says)[1],
            )
            execute(experiment, tmp_path / name)
            found[name] = experiment
        monkeypatch.setattr("simlab.studies.board.load_experiments", lambda: found)
        return tmp_path

    return fill


def _by_id(folder=None):
    return {row.id: row for row in board(folder).rows}


def _finding(claim, verdict="reproduced", low=0.5, effect=1.0, high=1.5):
    return Evidence(claim, verdict, effect, low, high, "unit", "rule")


def test_every_id_has_a_row(rows):
    assert list(rows) == [f"{letter}{n}" for letter, last in IDS.items() for n in range(1, last + 1)]
    assert list(dict.fromkeys(row.paper for row in rows.values())) == list(load_papers())
    assert sum(counts(list(rows.values())).values()) == len(load_claims())
    assert {row.verdict for row in rows.values()} <= set(WORDS)


def test_every_number_has_a_rule_and_a_manifest(rows):
    manifests = {experiment.name: (experiment, manifest) for experiment, manifest in list_stored()}
    for row in rows.values():
        if row.verdict == UNTESTED:
            assert (row.effect, row.low, row.high, row.experiment) == (None, None, None, "")
            continue
        experiment, manifest = manifests[row.experiment]
        assert row.id in experiment.claims
        assert row.commit.startswith(manifest["commit"][:12])
        assert row.rule
        assert row.unit
        assert all(math.isfinite(number) for number in (row.low, row.effect, row.high))
        for figure in experiment.figures:
            assert (ROOT / "figures" / "out" / f"{figure}.png").is_file()
    for each in evidence()[0]:
        assert each.claim in manifests[each.experiment][0].claims


def test_what_is_false_as_printed_is_opposite(rows):
    assert {
        claim for claim, row in rows.items() if row.experiment == "theory" and row.verdict == "opposite"
    } == {
        "H5",
        "C6",
    }
    # The bound holds; its growth with T^2 and a step of its proof do not.
    assert rows["L8"].verdict == "reproduced"
    assert rows["L8"].note.count("False as printed: lr Thm. 3.1") == 1
    assert "0.3336" in rows["H5"].note
    assert rows["H1"].verdict == rows["H2"].verdict == rows["H3"].verdict == "reproduced"


@pytest.mark.slow
@pytest.mark.parametrize("name", [experiment.name for experiment, _ in list_stored() if experiment.claims])
def test_figures_show_what_the_tables_hold(name, tmp_path):
    from simlab.core.results import Results

    for figure, source in FIGURES.items():
        if source.experiment == name:
            drawn = render(source.draw, Results(committed_results(name)), tmp_path, figure)[0]
            kept = ROOT / "figures" / "out" / drawn.name
            assert np.array_equal(imread(drawn), imread(kept)), figure


def test_summary_counts_papers_apart_from_ours(shop):
    lines = summary(board(shop(theory=[_finding("H3"), _finding("T1")])).rows).splitlines()
    assert lines[0] == "| | reproduced | opposite | no effect | inconclusive | not yet tested |"
    assert "| hacking | 1 | 0 | 0 | 0 | 19 |" in lines
    assert "| the five papers | 1 | 0 | 0 | 0 | 71 |" in lines
    assert "| tensor cores | 1 | 0 | 0 | 0 | 4 |" in lines


def test_what_needs_no_training_does_not_settle_dynamics(shop):
    row = _by_id(shop(softmax=[_finding("H18", "opposite")]))["H18"]
    assert row.verdict == "inconclusive"
    assert row.note.startswith("The part that needs no training: opposite.")
    folder = shop(softmax=[_finding("H18", "opposite")], hacking_levels=[_finding("H18")])
    row = _by_id(folder)["H18"]
    assert (row.verdict, row.experiment, row.also) == ("reproduced", "hacking_levels", ("softmax: opposite",))


def test_exact_sums_decide_identities_before_runs(shop):
    folder = shop(
        weak=[_finding("H7", "inconclusive"), _finding("H3", "opposite")],
        strong=[_finding("H7", "opposite")],
        theory=[_finding("H3"), _finding("H7")],
    )
    rows = _by_id(folder)
    assert (rows["H3"].verdict, rows["H3"].experiment) == ("reproduced", "theory")
    assert (rows["H7"].verdict, rows["H7"].experiment) == ("opposite", "strong")
    assert rows["H7"].also == ("weak: inconclusive", "theory: reproduced")


def test_p_values_are_adjusted_within_a_paper(shop):
    half = 1.96 / 2.5  # z = 2.5, p = 0.0124
    says = [_finding(claim, low=1 - half, high=1 + half) for claim in ("H7", "H8", "L1")]
    rows = _by_id(shop(runs=[*says, _finding("H3")]))
    assert rows["H7"].adjusted_p == pytest.approx(2 * 0.01242, rel=1e-3)
    assert rows["L1"].adjusted_p == pytest.approx(0.01242, rel=1e-3)
    assert rows["H3"].adjusted_p is rows["H9"].adjusted_p is None


def test_board_reports_problem_when_result_is_unreadable(shop, monkeypatch):
    found = board(shop(runs=[_finding("H99")]))
    assert found.problems == ["runs decides H99, not a claim of the board; run it again: simlab run runs"]
    folder = shop(runs=[_finding("H7")])
    broken = replace(list_stored(folder)[0][0], collect_evidence=lambda results: results.table("gone"))
    monkeypatch.setattr("simlab.studies.board.load_experiments", lambda: {"runs": broken})
    found = board(folder)
    assert len(found.problems) == 1
    assert found.problems[0].startswith("runs cannot decide from its tables: ")
    assert {row.verdict for row in found.rows} == {UNTESTED}


def test_stored_results_can_be_read_by_their_experiments():
    assert board().problems == []
