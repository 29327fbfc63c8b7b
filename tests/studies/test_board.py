"""The board: rows per regime, families, registration, agreement with tables, figures and README."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from figures.catalog import FIGURES
from figures.style import render
from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.studies import Measured
from simlab.studies import estimands as m
from simlab.studies.arms import Arm
from simlab.studies.board import Board, board, counts, list_results, measurements, power_text, summary
from simlab.studies.contrasts import minus
from simlab.studies.experiment import Experiment, execute
from simlab.studies.loading import find_figures, load_claims, load_papers
from simlab.studies.records import Claim, Regime, Trial, manipulation, primary, secondary, stored_row
from simlab.studies.registration import criterion_hash, find_registration, has_newer_test, register
from simlab.studies.samples import Exact, mean_of_policies
from simlab.studies.verdicts import VERDICTS, claim_verdict, criterion_verdict, decide_family

ROOT = Path(__file__).resolve().parents[2]
IDS = {"H": 20, "L": 13, "V": 7, "A": 16, "C": 16, "T": 5, "N": 9}
EFFECT = np.array([0.9, 1.0, 1.1, 1.0, 0.95, 1.05, 1.0, 1.02])


@pytest.fixture(scope="module")
def shipped() -> Board:
    return board()


def criterion(role=primary, direction="positive", margin=0.2):
    return role(m.REWARD, minus(Arm("a"), Arm("b")), direction, margin, because="made up")


def trial(claim="H7", experiment="runs", criteria=None, regime="R"):
    return Trial(experiment, criteria or (criterion(),), Regime(regime), claim=claim)


def measured(values=EFFECT, *, policies=8, manifest=None, **where):
    sample = mean_of_policies(np.resize(values, policies))
    chosen = trial(**where)
    return Measured(chosen, (sample,) * len(chosen.criteria), manifest=manifest or {})


def verdicts(*found):
    return [evidence.verdict for evidence in decide_family(found)]


def test_board_has_every_claim_in_its_order(shipped):
    ids = list(dict.fromkeys(row.id for row in shipped.rows))
    assert ids == [f"{letter}{n}" for letter, last in IDS.items() for n in range(1, last + 1)]
    assert list(dict.fromkeys(row.claim.paper for row in shipped.rows)) == list(load_papers())
    assert sum(counts(shipped.rows).values()) == len(shipped.rows) >= len(load_claims())
    keys = [(row.id, row.experiment, row.regime_name) for row in shipped.rows]
    assert len(set(keys)) == len(keys)
    assert shipped.problems == []


def test_json_follows_the_schema_and_the_rules(shipped):
    for row in json.loads(json.dumps([row.as_dict() for row in shipped.rows], allow_nan=False)):
        assert {"id", "paper", "reference", "statement", "kind", "regime", "registered"} <= set(row)
        assert row["verdict"] in VERDICTS
        assert row["regime"]
        assert [each["primary"] for each in row["criteria"]].count(True) == 1
        assert (row["commit"] == "") == (row["verdict"] == "not run")
        for each in row["criteria"]:
            assert each["margin"] > 0
            assert each["because"]
            if each["estimate"] is None:
                assert each["verdict"] == "inconclusive"
                continue
            low = -math.inf if each["ci_low"] is None else each["ci_low"]
            high = math.inf if each["ci_high"] is None else each["ci_high"]
            assert low <= each["estimate"] + 1e-12
            assert high >= each["estimate"] - 1e-12
            expected = criterion_verdict((low, high), each["direction"], each["margin"])
            # A registered study is not decided at its first analysis; a number without sampling is.
            is_early = row["registered"] == "before" and 0 < each["policies"] < 16
            assert each["verdict"] == ("inconclusive" if is_early and each["primary"] else expected)


def test_shipped_criteria_are_supported_where_their_p_is_small(shipped):
    """Sign flips of very few policies reach no small p; an interval alone supports nothing."""
    tested = [each for row in shipped.rows for each in row.criteria if row.evidence and each.p is not None]
    assert len(tested) > 100
    wrong = [each for each in tested if (each.verdict == "supported") != (each.p <= each.alpha)]
    assert not wrong


def test_board_states_power_of_each_sampled_primary(shipped):
    rows = {(row.id, row.experiment): row for row in shipped.rows}
    wide = rows["V3", "vexact_dynamics"]
    # Stored contrasts spread little against the margin of C13, and much against that of V3.
    assert not rows["C13", "cancel_dynamics"].is_underpowered
    assert wide.is_underpowered
    assert power_text(wide) == f"{wide.power:.0%}, underpowered"
    for row in shipped.rows:
        has_contrast = row.primary is not None and row.primary.criterion.contrast is not None
        assert (row.power is not None) == has_contrast, row.id
        assert row.as_dict()["underpowered"] == row.is_underpowered


def test_supported_primaries_have_small_adjusted_p(shipped):
    for row in shipped.rows:
        found = row.primary
        if found is not None and found.criterion.is_sampled:
            if row.registered != "before" or found.num_policies >= 16:
                assert (found.verdict == "supported") == (found.adjusted_p <= 0.05), row.id
            assert found.num_policies > 0 or found.criterion.contrast is None


def test_rows_say_when_their_rule_was_set(shipped):
    for row in shipped.rows:
        assert (row.registered == "") == (row.evidence is None)
        assert ("rule changed after the run" in row.note) == (row.registered == "after")
        if row.registered == "before":
            assert row.evidence.manifest["config"]["registered"]["looks"] == [8, 16, 24]


def test_rows_say_that_a_test_was_changed_after_their_run(shipped):
    old = [row for row in shipped.rows if row.is_tested_anew]
    assert {row.trial.primary.contrast is None for row in old} == {False}
    assert all("the test was changed after the run" in row.note for row in old)
    assert has_newer_test({"config": {"registered": {"test": "Student's t"}}})
    assert not has_newer_test({"config": {"registered": dict(register([], "made up"))}})


def test_measured_rows_are_tested_with_the_family_of_their_paper(shipped):
    """A stored interval is a test like any other; a stored point and an exact check are none."""
    for row in shipped.rows:
        for each in row.criteria:
            if each.estimate is not None and each.criterion.contrast is None:
                assert each.criterion.is_sampled == (each.ci_low < each.ci_high), row.id
                is_tested = each.criterion.is_sampled and each.criterion.role == "primary"
                assert (each.adjusted_p is not None) == is_tested, row.id


def test_rows_name_their_result_and_figures(shipped):
    manifests = {experiment.name: (experiment, results.manifest) for experiment, results in list_results()}
    for row in shipped.rows:
        if row.evidence is None:
            assert row.core_minutes is None or row.core_minutes > 0
            continue
        experiment, manifest = manifests[row.experiment]
        assert row.id in experiment.claims
        assert row.commit.startswith(manifest["commit"][:12])
        for figure in find_figures(experiment.name):
            assert (ROOT / "figures" / "out" / f"{figure}.png").is_file()


def test_residuals_of_exact_checks_agree_with_their_verdicts():
    table = Results(committed_results("theory")).table("rows").set_index(["claim", "statement"])
    for each in measurements()[0]:
        for check, sample in zip(each.trial.criteria, each.samples, strict=True):
            if each.trial.experiment == "theory":
                assert isinstance(sample, Exact), check.text
                holds = table.loc[(each.trial.claim, check.text), "verdict"] == "holds"
                assert holds == (sample.estimate <= check.margin), check.text


def test_claims_false_as_printed_are_contradicted(shipped):
    rows = {(row.id, row.experiment): row for row in shipped.rows}
    false = [key for key, row in rows.items() if row.verdict == "contradicted" and key[1] == "theory"]
    assert false == [("H5", "theory"), ("C6", "theory")]
    # The bound holds; its growth with T^2 and a step of its proof do not.
    assert rows["L8", "theory"].verdict == "partly reproduced"
    assert rows["L8", "theory"].note.count("false as printed: lr Thm. 3.1") == 1
    assert "0.3336" in rows["H5", "theory"].note


@pytest.mark.parametrize(
    ("roles", "verdict"),
    [
        (("supported", "supported", "supported"), "reproduced"),
        (("supported", "negligible", "supported"), "partly reproduced"),
        (("supported", "inconclusive", "supported"), "partly reproduced"),
        (("contradicted", "supported", "supported"), "contradicted"),
        (("negligible", "supported", "supported"), "no effect"),
        (("inconclusive", "supported", "supported"), "inconclusive"),
        (("supported", "supported", "negligible"), "premise absent"),
        (("contradicted", "supported", "contradicted"), "premise absent"),
        (("supported", "supported", "inconclusive"), "inconclusive"),
    ],
)
def test_claim_verdict_by_premise_then_primary(roles, verdict):
    rules = (criterion(), criterion(secondary), criterion(manipulation))
    (evidence,) = decide_family([measured(criteria=rules)])
    parts = [replace(each, verdict=word) for each, word in zip(evidence.criteria, roles, strict=True)]
    assert claim_verdict(parts) == verdict


def test_family_of_a_paper_widens_the_intervals_of_its_primaries():
    weak = measured(EFFECT - 0.72)
    (alone,) = decide_family([weak])
    family = decide_family([weak, *(measured(EFFECT - 1, claim=f"H{n}") for n in range(8, 20))])[0]
    assert alone.verdict == "reproduced"
    assert family.verdict == "inconclusive"
    assert family.primary.alpha == pytest.approx(0.05 / 13)
    assert family.primary.adjusted_p == pytest.approx(13 * alone.primary.p)
    assert family.primary.ci_low < alone.primary.ci_low


def test_a_secondary_keeps_its_own_level():
    rules = (criterion(), criterion(secondary))
    found = decide_family([measured(criteria=rules, claim=f"H{n}") for n in (7, 8, 9)])
    assert {each.criteria[1].alpha for each in found} == {0.05}


def test_registered_looks_decide_nothing_at_eight_policies():
    looks = {"config": {"registered": {"looks": [8, 16, 24], "criteria": {}}}}
    assert verdicts(measured(manifest=looks)) == ["inconclusive"]
    assert verdicts(measured(manifest=looks, policies=16)) == ["reproduced"]
    assert verdicts(measured()) == ["reproduced"]


def test_a_sign_conflict_of_processors_is_inconclusive():
    found = replace(measured(), conflict="the sign differs between processor families: A 1, B -1")
    (evidence,) = decide_family([found])
    assert evidence.verdict == "inconclusive"
    assert "processor families" in evidence.note


def test_registration_is_before_only_if_no_rule_changed():
    claim = Claim("H7", "hacking", "s", "r", "dynamics", (trial(),))
    config = {"registered": register([claim], "runs")}
    assert find_registration(claim.trials[0], {"config": config}) == "before"
    assert find_registration(claim.trials[0], {"config": {}}) == "after"
    stricter = Claim("H7", "hacking", "s", "r", "dynamics", (trial(criteria=(criterion(margin=0.1),)),))
    assert find_registration(stricter.trials[0], {"config": config}) == "after"
    assert (
        find_registration(claim.trials[0], {"config": config | {"resumed_from": {"config": {}}}}) == "after"
    )
    printed = [
        trial(criteria=(stored_row("id", "row", "zero", 0.1, because="", reference=at),)) for at in (1, 2)
    ]
    assert len({criterion_hash(each, each.primary) for each in printed}) == 2
    twice = config | {"resumed_from": {"config": config}}
    assert find_registration(claim.trials[0], {"config": twice}) == "before"
    assert (
        find_registration(replace(claim.trials[0], is_exploratory=True), {"config": config}) == "exploratory"
    )


def test_a_result_that_cannot_be_read_is_a_problem(monkeypatch, tmp_path):
    def experiment(collect):
        return Experiment(
            "runs", "?", "a rule", lambda run: run.table("rows", [{"x": 1}]), 1.0, collect_evidence=collect
        )

    execute(experiment(None), tmp_path / "runs")
    broken = {
        "runs cannot decide from its tables: ": lambda results: results.table("gone"),
        "runs decides H99, not a claim of the board": lambda _: [measured(claim="H99")],
    }
    for message, collect in broken.items():
        found = {"runs": experiment(collect)}
        monkeypatch.setattr("simlab.studies.board.load_experiments", lambda found=found: found)
        made = board(tmp_path)
        assert len(made.problems) == 1
        assert made.problems[0].startswith(message)
        assert {row.verdict for row in made.rows} == {"not run"}


def test_summary_counts_what_the_rows_hold(shipped):
    lines = summary(shipped.rows).splitlines()
    assert lines[0] == f"| | {' | '.join(VERDICTS)} |"
    (five,) = [line for line in lines if line.startswith("| the five papers |")]
    total = [int(cell) for cell in five.split("|")[2:-1]]
    counted = [row for row in shipped.rows if row.registered != "exploratory"]
    assert len(counted) < len(shipped.rows)
    assert sum(total) == sum(row.claim.paper not in ("tensor cores", "recent") for row in counted)


@pytest.mark.slow
@pytest.mark.parametrize("name", [experiment.name for experiment, _ in list_results() if experiment.claims])
def test_figures_show_what_the_tables_hold(name, tmp_path):
    for figure, source in FIGURES.items():
        if source.experiment == name:
            drawn = render(source.draw, Results(committed_results(name)), tmp_path, figure)[0]
            kept = ROOT / "figures" / "out" / drawn.name
            assert np.array_equal(imread(drawn), imread(kept)), figure


@pytest.mark.parametrize(
    ("policies", "config", "words"),
    [
        (16, {}, "stopped at 16 of 24 initial policies, where the rule of that time had decided"),
        (16, {"stopped_in_block": 3}, "interrupted after 16 of 24"),
        (8, {}, "stopped for futility after 8 of 24"),
        (6, {}, "has 6 of 24 initial policies, and nothing is decided with fewer than 16"),
    ],
)
def test_note_says_why_a_study_ended_early(policies, config, words):
    manifest = {"config": {"registered": {"looks": [8, 16, 24]}, **config}}
    values = np.linspace(-1, 1, policies)
    (evidence,) = decide_family([measured(values, policies=policies, manifest=manifest)])
    assert evidence.verdict == "inconclusive"
    assert words in evidence.note
