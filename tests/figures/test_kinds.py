"""Kinds of figures compare arms from equal initial policies; what those share widens no band."""

import warnings
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from figures.catalog import FIGURES, REWARD
from figures.heading import SETTINGS, describe_setting, describe_verdicts
from figures.kinds import Bars, Curves, arm_styles
from figures.series import bands, best, curves, fall, final, mean_within, steps_to_gain
from figures.style import RC, render
from simlab.core.manifest import MANIFEST_NAME
from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.studies.estimands import Tables

STARTS = ("a", "b", "c")
BAR_ROWS = [("a", "static", 1), ("a", "traced", 1), ("b", "static", 1), ("b", "static", 2)]


def _made(rows, **columns) -> Any:
    """Results of runs (arm, start, seed, reward of each chunk)."""
    setting = {"task": "add", "model": "tiny-llama", "noise_kind": "truncation", "noise_level": 1.0}
    runs = [
        {"run": f"{n}", "arm": arm, "initial_policy": start, "seed": seed, "steps": 10 * len(rewards)}
        | setting
        for n, (arm, start, seed, rewards) in enumerate(rows)
    ]
    chunks = [
        {"run": f"{n}", "step": 10 * i, "reward": reward, **columns}
        for n, (*_, rewards) in enumerate(rows)
        for i, reward in enumerate(rewards)
    ]
    return Tables({"runs": pd.DataFrame(runs), "chunks": pd.DataFrame(chunks)})


def _curves(*values):
    return pd.DataFrame([values], columns=list(STARTS))


def test_bands_add_up_to_the_paired_error_of_two_arms():
    found = {"one": _curves(1.0, 5.0, 9.0), "other": _curves(1.3, 5.1, 9.9)}
    drawn = bands(found, log=False)
    one, other = (float((band["high"] - band["middle"]).iloc[0]) for band in drawn.values())
    gaps = np.array([0.3, 0.1, 0.9])
    assert np.hypot(one, other) == pytest.approx(gaps.std(ddof=1) / np.sqrt(3))


def test_bands_are_zero_for_an_arm_without_spread():
    drawn = bands({"one": _curves(1.0, 5.0, 9.0), "exact": _curves(1.0, 1.0, 1.0)}, log=False)
    assert drawn["exact"]["low"].iloc[0] == drawn["exact"]["high"].iloc[0] == 1.0


def test_bands_on_log_axes_are_geometric_unless_zero():
    assert bands({"one": _curves(1.0, 10.0, 100.0)}, log=True)["one"]["middle"].iloc[0] == pytest.approx(10)
    assert bands({"one": _curves(0.0, 10.0, 20.0)}, log=True)["one"]["middle"].iloc[0] == pytest.approx(10)


def test_curves_keep_shared_policies_and_average_seeds():
    rows = [("one", "a", 0, [1.0] * 4), ("one", "a", 1, [3.0] * 4), ("one", "b", 0, [6.0] * 4)]
    results = _made([*rows, ("other", "b", 0, [7.0] * 4)])
    assert mean_within(results, "reward")["one"].to_dict() == {"a": 2.0, "b": 6.0}
    found = curves(results, ("one", "other", "absent"), "reward")
    assert {arm: list(curve.columns) for arm, curve in found.items()} == {"one": ["b"], "other": ["b"]}


def test_mean_within_is_empty_when_not_recorded():
    results = _made([("one", "a", 0, [1.0] * 4)])
    results.tables["diagnostics"] = pd.DataFrame(columns=["run", "step"])
    assert not len(mean_within(results, "held_out_fp8", table="diagnostics"))


def test_looks_of_fixed_arms_are_the_same_everywhere():
    assert (
        arm_styles(("x", "no correction", "BF16 control"))["no correction"]
        == arm_styles(("no correction",))["no correction"]
    )
    assert len({style["color"] for style in arm_styles(("x", "no correction", "BF16 control")).values()}) == 3


@pytest.mark.parametrize("name", ["hacking_fig2", "cancel_tab3", "cancel_tab2"])
def test_figures_draw_without_warnings_when_arms_are_missing(name, tmp_path):
    results = _made([("another", "a", 0, [0.0, 1.0])], entropy=1.0, rms_log_rho=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert render(FIGURES[name].draw, results, tmp_path, name)[0].is_file()
        figure = Curves(("another",), (REWARD,)).draw(results)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["another"]


def test_estimates_of_one_run_match_hand_counts():
    rewards = [0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.02, 0.02, 0.02, 0.02]
    results = _made([("one", "a", 0, rewards)])
    values = {
        "final": final("reward"), "best": best("reward"), "fall": fall("reward"), "gain": steps_to_gain(0.05)
    }  # fmt: skip
    found = {name: estimate(results)["one", "a"] for name, estimate in values.items()}
    # The last quarter is steps 90 to 110; 5 chunks of 0.1 end at step 70; 3 of 5 reach 0.05 at step 50.
    assert found == pytest.approx({"final": 0.02, "best": 0.1, "fall": -0.08, "gain": 60.0})


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
        "Task add, tiny-llama, 40 steps; noise: truncation, 1 bit; n = 2 initial policies x 2 seeds"
    )
    assert "40, 90 steps" in describe_setting(results, "lr_dynamics", None)
    with mpl.rc_context(RC):
        figure = FIGURES["lr_fig4"].draw(
            _made([("chain: no correction", "a", 0, [1.0] * 4)], log_ppl_abs_diff=1.0)
        )
    assert figure.texts[0].get_text().startswith("lr Fig. 4: Reward and sequence log ratio")


def test_heading_names_verdicts_of_the_shipped_result_only(monkeypatch, tmp_path):
    def row(claim, reference, experiment="lr_dynamics"):
        stated = SimpleNamespace(paper="lr", reference=reference)
        return SimpleNamespace(id=claim, claim=stated, verdict="no effect", experiment=experiment, evidence=1)

    rows = [row("L6", "Fig. 11, 12"), row("L7", "Fig. 13"), row("L8", "Fig. 11", "theory")]
    monkeypatch.setattr("figures.heading._board", lambda: rows)
    shipped = Results(committed_results("lr_dynamics"))
    assert describe_verdicts(shipped, "lr_dynamics", "lr Fig. 11") == "L6 no effect"
    (tmp_path / MANIFEST_NAME).touch()
    assert describe_verdicts(Results(tmp_path), "lr_dynamics", "lr Fig. 11") == ""


@pytest.mark.parametrize("name", sorted({row.experiment for row in FIGURES.values()}))
def test_heading_describes_every_stored_experiment(name):
    if (committed_results(name) / MANIFEST_NAME).is_file():
        words = describe_setting(Results(committed_results(name)), name, None)
        assert "{" not in words
        assert name in SETTINGS or ("noise: " in words and "n = " in words)
