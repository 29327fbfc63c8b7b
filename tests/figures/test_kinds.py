"""Kinds of figures show intervals at the level of the board and, where n is small, the raw points."""

import warnings
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from figures import mismatch
from figures.arms import ArmRoles, arm_styles, find_roles
from figures.catalog import FIGURES, HACKING
from figures.catalog import REWARD as REWARD_PANEL
from figures.heading import SETTINGS, describe_setting, find_level, find_rows, state_estimates, state_finding
from figures.kinds import BEYOND, UNBOUNDED, Bars, Curves, Forest, Panel, describe_lines, draw_panel
from figures.series import curves, measure, smooth, subtract
from figures.style import COLORS, DASHES, PAGE, RC, new_figure, render
from simlab.core.manifest import MANIFEST_NAME
from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.studies import Measured, paired_effect
from simlab.studies.arms import Arm
from simlab.studies.board import Row
from simlab.studies.contrasts import minus
from simlab.studies.estimands import PEAK_REWARD, REWARD, Tables, diagnostic_late, late, steps_to_gain
from simlab.studies.loading import load_experiment
from simlab.studies.records import Claim, Trial, manipulation, primary
from simlab.studies.samples import mean_of_policies
from simlab.studies.verdicts import decide_family

STARTS = ("a", "b", "c")
STEPS = np.arange(0, 100, 10)
BAR_ROWS = [("a", "static", 1), ("a", "traced", 1), ("b", "static", 1), ("b", "static", 2)]

APART = (1.0, 1.0, 1.0, 9.0, 9.0, 9.0)
LONG = 0.968  # of six policies: sign flips just reach it, and Student's interval is longer than their range


def _made(rows, **columns) -> Any:
    """Results of runs (arm, start, seed, reward of each chunk)."""
    setting = {
        "task": "add",
        "model": "tiny-llama",
        "noise_kind": "truncation",
        "noise_level": 1.0,
        "status": "finished",
    }
    runs = [
        {"run": f"{n}", "arm": arm, "initial_policy": start, "seed": seed, "steps": 10 * len(rewards)}
        | setting
        | {"status": "finished"}
        for n, (arm, start, seed, rewards) in enumerate(rows)
    ]
    chunks = [
        {"run": f"{n}", "step": 10 * i, "reward": reward, **columns}
        for n, (*_, rewards) in enumerate(rows)
        for i, reward in enumerate(rewards)
    ]
    measured = pd.DataFrame(chunks)
    return Tables({"runs": pd.DataFrame(runs), "chunks": measured, "diagnostics": measured})


def _panel(panel, level=0.99, **values):
    """Draw a panel of curves [step 0 to 90, policy] and return its axis."""
    _, (axis,) = new_figure()
    found = {arm: pd.DataFrame(dict(enumerate(rows)), index=STEPS) for arm, rows in values.items()}
    draw_panel(axis, found, panel, arm_styles(list(values)), level)
    return axis


def test_panel_ends_show_the_interval_of_the_last_quarter():
    policies = [np.where(STEPS >= 70, late, 9.0) for late in (5.0, 5.02, 5.05)]
    lines = _panel(Panel("m", "m"), 0.7, one=policies).lines
    (bar,) = [line for line in lines if line.get_linewidth() == 3.4]
    expected = paired_effect([5.0, 5.02, 5.05], 0.0, STARTS, level=0.7)
    assert bar.get_ydata() == pytest.approx([expected.low, expected.high])
    assert bar.get_xdata()[0] > STEPS[-1]


def test_panel_shows_all_policies_and_cuts_long_intervals():
    axis = _panel(Panel("m", "m", limits=(0, None)), LONG, one=[np.full(10, value) for value in APART])
    low, high = axis.get_ylim()
    assert low == 0
    assert high > 9
    marks = {line.get_marker(): line for line in axis.lines}
    assert marks["v"].get_ydata() == pytest.approx([low])
    assert marks["^"].get_ydata() == pytest.approx([high])
    assert sorted(marks["o"].get_ydata()) == sorted(APART)
    (bar,) = [line for line in axis.lines if line.get_linewidth() == 3.4]  # as heavy as a complete one
    assert bar.get_ydata() == pytest.approx([low, high])


@pytest.mark.parametrize(("level", "notes"), [(0.5, []), (LONG, [BEYOND]), (0.99, [UNBOUNDED])])
def test_legend_explains_intervals_that_are_cut_or_unbounded(level, notes):
    results = _made([("one", str(n), 0, [value] * 4) for n, value in enumerate(APART)])
    figure = Curves((Panel("reward", "reward"),), ("one",)).draw(results, level)
    title = figure.legends[0].get_title().get_text()
    assert [note for note in (BEYOND, UNBOUNDED) if note in title] == notes
    bars = [line for line in figure.axes[0].lines if line.get_linewidth() == 3.4]
    assert len(bars) == (UNBOUNDED not in notes)


def test_forest_axis_shows_the_policies_and_cuts_long_intervals():
    rows = [("one", str(n), 0, [value] * 4) for n, value in enumerate(APART)]
    rows += [("other", str(n), 0, [5.0] * 4) for n in range(6)]
    kind = Forest({"one": "other"}, {"label": measure(late("reward", "reward"))}, 1.5)
    (axis,) = kind.draw(_made(rows), LONG).axes
    assert axis.get_xlim() == pytest.approx((-4.8, 4.8))
    assert axis.get_xlabel().endswith(BEYOND)
    assert {"<", ">"} <= {line.get_marker() for line in axis.lines}


def test_forest_means_are_those_of_the_compared_policies():
    rows = [("one", "a", 0, [1.0] * 4), ("one", "b", 0, [3.0] * 4), ("one", "c", 0, [50.0] * 4)]
    rows += [("other", name, 0, [0.0] * 4) for name in "ab"]
    kind = Forest({"one": "other"}, {"label": measure(late("reward", "reward"))}, 1.5)
    (axis,) = kind.draw(_made(rows), 0.5).axes
    assert "2 (2)" in {text.get_text() for text in axis.texts}


def test_curve_of_two_metrics_is_their_mean():
    results = _made([("one", "a", 0, [1.0] * 4)], held_out_train=0.4, held_out_infer=0.2)
    found = curves(results, ["one"], ["held_out_train", "held_out_infer"], "diagnostics")
    assert found["one"]["a"].to_numpy() == pytest.approx([0.3] * 4)
    assert curves(results, ["one"], ["held_out_train", "absent"], "diagnostics") == {}


def test_curves_minus_an_arm_pair_initial_policies():
    rows = [("one", "a", 0, [3.0] * 4), ("one", "b", 0, [5.0] * 4)]
    rows += [("other", "a", 0, [1.0] * 4), ("other", "b", 0, [4.0] * 4)]
    figure = Curves((REWARD_PANEL,), ("one", "other"), minus="other").draw(_made(rows))
    assert figure.axes[0].get_ylabel() == "reward\nminus other"
    assert figure.axes[0].lines[0].get_ydata() == pytest.approx([1.5] * 4)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one"]
    assert subtract({"one": pd.DataFrame()}, "absent") == {}


def test_panel_means_are_geometric_on_log_axes():
    axis = _panel(Panel("m", "m", log=True), one=[np.full(10, value) for value in (1.0, 10.0, 100.0)])
    assert axis.get_yscale() == "log"
    assert axis.lines[0].get_ydata()[0] == pytest.approx(10)


def test_panel_shows_an_arm_at_exactly_zero_on_a_log_axis():
    axis = _panel(
        Panel("m", "m", log=True),
        zero=[np.zeros(10)] * 3,
        other=[np.full(10, value) for value in (1e-4, 1e-3, 1e-2)],
    )
    assert axis.get_yscale() == "symlog"
    assert axis.get_ylim()[0] < 0


def test_every_figure_has_the_width_of_a_page():
    for name in ("hacking_tab1", "hacking_fig2", "cancel_tab3"):
        with mpl.rc_context(RC):
            figure = FIGURES[name].draw(Results(committed_results(FIGURES[name].experiment)))
        assert figure.get_figwidth() == PAGE


def test_curves_keep_shared_policies_and_average_seeds():
    rows = [("one", "a", 0, [1.0] * 4), ("one", "a", 1, [3.0] * 4), ("one", "b", 0, [6.0] * 4)]
    results = _made([*rows, ("other", "b", 0, [7.0] * 4)])
    assert measure(late("reward", "reward"))(results)["one"].to_dict() == {"a": 2.0, "b": 6.0}
    found = curves(results, ("one", "other", "absent"), ["reward"])
    assert {arm: list(curve.columns) for arm, curve in found.items()} == {"one": ["b"], "other": ["b"]}


def test_measure_is_empty_when_not_recorded():
    results = _made([("one", "a", 0, [1.0] * 4)])
    results.tables["diagnostics"] = pd.DataFrame(columns=["run", "step"])
    assert not len(measure(diagnostic_late("held_out_fp8", "held-out reward"))(results))


def test_smooth_averages_complete_windows_alone():
    ramp = pd.Series(np.arange(50.0))
    inner = slice(2, -2)
    assert smooth(ramp)[inner].to_list() == pytest.approx(ramp[inner].to_list())
    step = pd.Series([1.0, *[0.0] * 49])
    assert smooth(step)[inner].to_list() == pytest.approx([1 / 5, *[0] * 45])
    assert smooth(step, "median")[inner].sum() == 0
    assert smooth(step).isna().to_list() == [True] * 2 + [False] * 46 + [True] * 2
    assert smooth(step[:20]).equals(step[:20])


def test_kinds_take_arms_from_the_criteria_of_their_claims():
    arms = FIGURES["hacking_fig5"].complete_kind.arms
    assert {"chain: GSPO", "chain: GSPO, delta 3", mismatch.NONE, mismatch.CONTROL} <= set(arms or ())
    forest = FIGURES["acrl_tab1"].complete_kind
    assert isinstance(forest, Forest)
    assert not isinstance(forest.pairs, str)
    assert set(forest.pairs.values()) == {"chain: E4M3, BF16 control"}
    assert "chain: E4M3, ACRL 0.65" in forest.pairs


def test_figure_rejects_results_that_lack_an_arm(monkeypatch):
    tables = _made([(mismatch.NONE, "a", 0, [0.0, 1.0])]).tables
    stored = Results(committed_results(HACKING))
    monkeypatch.setattr(Results, "table", lambda _, name: tables[name])
    with pytest.raises(ValueError, match="must hold all arms"):
        FIGURES["hacking_fig2"].draw(stored)


def test_styles_of_untreated_arm_and_control_are_their_own():
    roles = ArmRoles("plain", ("absent", "bf16", "another control"))
    many = arm_styles((*"abcdefgh", "another control", "bf16", "plain"), roles=roles)
    looks = {arm: (style["color"], style["ls"]) for arm, style in many.items()}
    assert looks["plain"] == (COLORS[0], DASHES[0])
    assert looks["bf16"] == (COLORS[-1], DASHES[-1])
    assert len(set(looks.values())) == len(many)
    assert [color for color, _ in looks.values()].count(COLORS[-1]) == 1
    assert arm_styles(("plain",), roles=roles)["plain"] == many["plain"]
    assert {style["color"] for style in arm_styles("abcdefg").values()}.isdisjoint({COLORS[0], COLORS[-1]})


@pytest.mark.parametrize(
    ("experiment", "untreated", "controls"),
    [
        (HACKING, mismatch.NONE, [mismatch.CONTROL]),
        ("length_wide_dynamics", "length, wide: no schedule", ["length, wide: BF16"]),
        ("noise_dynamics", "chain: weights in one bit, nearest", [mismatch.CONTROL]),
        ("acrl_algorithms", "chain: DAPO", ["chain: DAPO, BF16 control", "chain: PPO, BF16 control"]),
        ("cancel_dynamics", "template: DFPO without transform", []),
        ("formats", "", []),
    ],
)
def test_roles_come_from_design_and_criteria(experiment, untreated, controls):
    roles = find_roles(experiment)
    assert (roles.untreated, list(roles.controls)) == (untreated, controls)


@pytest.mark.parametrize("name", ["hacking_fig2", "cancel_tab3", "cancel_tab2"])
def test_figures_draw_without_warnings_when_arms_are_missing(name, tmp_path):
    results = _made([("another", "a", 0, [0.0, 1.0])], entropy=1.0, rms_log_rho=0.1)
    results.tables["diagnostics"] = pd.DataFrame(columns=["run", "step"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert render(FIGURES[name].draw, results, tmp_path, name)[0].is_file()
        figure = Curves((REWARD_PANEL,), ("another",)).draw(results)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["another"]


def test_estimates_of_one_run_match_hand_counts():
    rewards = [0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.02, 0.02, 0.02, 0.02]
    results = _made([("one", "a", 0, rewards)])
    values = {
        "final": late("reward", "reward"), "best": PEAK_REWARD, "gain": steps_to_gain(0.05)
    }  # fmt: skip
    found = {name: measure(estimand)(results)["one", "a"] for name, estimand in values.items()}
    # The last quarter is steps 90 to 110; 5 chunks of 0.1 end at step 70; 3 of 5 reach 0.05 at step 50.
    assert found == pytest.approx({"final": 0.02, "best": 0.1, "gain": np.log(60)})


def test_bars_draw_one_bar_per_value_from_the_top():
    rows = [{"name": n, "variant": v, "size": s, "ratio": 1.0 + i} for i, (n, v, s) in enumerate(BAR_ROWS)]
    results: Any = Tables({"speeds": pd.DataFrame(rows)})
    figure = Bars("speeds", "ratio", ("name",), "time", "variant", first="size").draw(results)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["b", "a"]
    assert sorted(text.get_text() for text in axis.texts) == [" 1", " 2", " 3"]


def test_heading_names_task_noise_and_n_of_shown_arms():
    rows = [("one", "a", 0, [1.0] * 4), ("one", "b", 1, [1.0] * 4), ("other", "a", 0, [1.0] * 9)]
    results = _made(rows)
    assert describe_setting(results, "lr_dynamics", ["one"]) == (
        "Task add, tiny-llama, 40 steps; noise: truncation (1 mantissa bit); n = 2 initial policies x 2 seeds"
    )
    assert "40, 90 steps" in describe_setting(results, "lr_dynamics", None)
    with mpl.rc_context(RC):
        figure = FIGURES["lr_fig4"].draw(
            _made([("chain: no correction", "a", 0, [1.0] * 4)], abs_seq_log_ratio=1.0, held_out_train=0.5)
        )
    assert figure.texts[0].get_text().startswith("lr Fig. 4: Reward, held-out reward and sequence log ratio")


SAMPLE = mean_of_policies(np.array([0.9, 0.9, 1.0, 1.0, 1.1, 1.1]))
SAMPLE_CI = "95% CI {:.3g} to {:.3g}".format(*SAMPLE.interval(0.05))


def _row(claim, experiment="lr_dynamics", *premises):
    rule = primary(REWARD, minus(Arm("chain: a"), Arm("chain: b")), "positive", 0.2, because="a reason")
    trial = Trial(experiment, (rule, *premises))
    tested = Claim(claim, "lr", "", "", "dynamics", (trial,)).trials[0]
    (evidence,) = decide_family([Measured(tested, (SAMPLE,) * len(trial.criteria))])
    stated = Claim(claim, "lr", "A statement", "", "dynamics", (trial,))
    return Row(stated, trial, evidence.verdict, evidence, experiment=experiment)


def test_heading_states_the_verdict_of_the_shipped_result_only(monkeypatch, tmp_path):
    rows = [_row("L6"), _row("L7"), _row("L8", "theory")]
    monkeypatch.setattr("figures.heading._board", lambda: rows)
    shipped = Results(committed_results("lr_dynamics"))
    found = find_rows(shipped, "lr_dynamics", ("L7", "L8", "L6"))
    assert [row.id for row in found] == ["L7", "L6"]
    assert state_finding(found[1]) == "Reproduced: A statement (L6, n = 6)"
    assert find_level(found) == pytest.approx(0.95)
    assert find_level([]) == 0.95
    first, second = state_estimates(found, {})
    assert first == (
        f"L7: reward, last quarter: chain: a minus chain: b = 1 ({SAMPLE_CI}, n = 6), margin 0.2"
    )
    assert second.startswith("L6 reproduced: ")
    (tmp_path / MANIFEST_NAME).touch()
    assert find_rows(Results(tmp_path), "lr_dynamics", ("L7", "L8", "L6")) == []


def test_heading_names_a_premise_that_is_not_supported():
    premises = (
        manipulation(REWARD, minus(Arm("chain: a"), Arm("chain: c")), direction, 1.0, because="a reason")
        for direction in ("negative", "positive")
    )
    row = _row("L6", "lr_dynamics", *premises)
    assert state_finding(row) == "Inconclusive: A statement (L6, n = 6)"
    _, line = state_estimates([row], {})
    assert line == (
        f"L6, premise inconclusive: reward, last quarter: chain: a minus chain: c = 1 ({SAMPLE_CI}, "
        "n = 6), margin 1"
    )


def test_heading_names_arms_as_the_legend_does(monkeypatch):
    stored = dict.fromkeys(("chain: a", "chain: b"), "no correction")
    monkeypatch.setattr("figures.heading._find_labels", lambda _: stored)
    (line,) = state_estimates([_row("L6")], {"chain: a": "dense", "chain: b": "MoE"})
    assert line.startswith("L6: reward, last quarter: dense minus MoE = 1 ")


@pytest.mark.parametrize("name", sorted({row.experiment for row in FIGURES.values()}))
def test_heading_describes_every_stored_experiment(name):
    if (committed_results(name) / MANIFEST_NAME).is_file():
        words = describe_setting(Results(committed_results(name)), name, None)
        assert "{" not in words
        assert name in SETTINGS or ("noise: " in words and "n = " in words)


@pytest.mark.parametrize("figure", [name for name, row in FIGURES.items() if row.complete_kind.arms])
def test_figure_arms_exist(figure):
    experiment = FIGURES[figure].experiment
    folder = committed_results(experiment)
    is_stored = (folder / MANIFEST_NAME).is_file()
    known: Any = (
        Results(folder).table("runs")["arm"] if is_stored else load_experiment(experiment).design.arms
    )
    assert set(FIGURES[figure].complete_kind.arms or ()) <= set(known)


@pytest.mark.parametrize(
    ("experiment", "table", "arms"),
    [
        ("vexact_dynamics", "runs", (*mismatch.WITHOUT_MISMATCH, *mismatch.OTHERS, *mismatch.BIT_LABELS)),
        ("token_probabilities", "tokens", mismatch.SCATTERED),
        ("flagship_sweep", "steps", mismatch.FLAGSHIP),
    ],
)
def test_custom_figure_arms_are_in_the_stored_table(experiment, table, arms):
    folder = committed_results(experiment)
    if not (folder / MANIFEST_NAME).is_file():
        pytest.skip("no stored result")
    assert set(arms) <= set(Results(folder).table(table)["arm"])


def test_legend_names_no_interval_for_one_policy():
    assert "CI" not in describe_lines(1, 0.95)
    assert "mean of 2 initial policies" in describe_lines(2, 0.95)
