"""Arms are compared from equal starts: what the starts share widens no band."""

import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.dynamics_study.measures import Tables
from figures import FIGURES
from figures.arms import REWARD, bands, by_start, curves, draw_panels, looks
from figures.style import render

STARTS = ("a", "b", "c")


def _made(rows, **columns) -> Any:
    """Results of runs (arm, start, seed, reward of each chunk)."""
    runs = [
        {"run": f"{n}", "arm": arm, "start": start, "seed": seed, "steps": 10 * len(rewards)}
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


def test_bands_of_two_arms_add_up_to_the_error_of_their_paired_difference():
    found = {"one": _curves(1.0, 5.0, 9.0), "other": _curves(1.3, 5.1, 9.9)}
    drawn = bands(found, log=False)
    one, other = (float((band["high"] - band["middle"]).iloc[0]) for band in drawn.values())
    gaps = np.array([0.3, 0.1, 0.9])
    assert np.hypot(one, other) == pytest.approx(gaps.std(ddof=1) / np.sqrt(3))


def test_an_arm_without_spread_gets_none_from_the_others():
    drawn = bands({"one": _curves(1.0, 5.0, 9.0), "exact": _curves(1.0, 1.0, 1.0)}, log=False)
    assert drawn["exact"]["low"].iloc[0] == drawn["exact"]["high"].iloc[0] == 1.0


def test_logarithmic_means_are_geometric_unless_there_are_zeros():
    assert bands({"one": _curves(1.0, 10.0, 100.0)}, log=True)["one"]["middle"].iloc[0] == pytest.approx(10)
    assert bands({"one": _curves(0.0, 10.0, 20.0)}, log=True)["one"]["middle"].iloc[0] == pytest.approx(10)


def test_seeds_of_a_start_count_once_and_only_shared_starts_are_drawn():
    rows = [("one", "a", 0, [1.0] * 4), ("one", "a", 1, [3.0] * 4), ("one", "b", 0, [6.0] * 4)]
    results = _made([*rows, ("other", "b", 0, [7.0] * 4)])
    assert by_start(results, "reward")["one"].to_dict() == {"a": 2.0, "b": 6.0}
    found = curves(results, ("one", "other", "absent"), "reward")
    assert {arm: list(curve.columns) for arm, curve in found.items()} == {"one": ["b"], "other": ["b"]}


def test_what_was_not_watched_is_empty():
    results = _made([("one", "a", 0, [1.0] * 4)])
    results.tables["watched"] = pd.DataFrame(columns=["run", "step"])
    assert not len(by_start(results, "held_out_fp8", table="watched"))


def test_known_arms_keep_their_looks():
    assert (
        looks(("x", "no correction", "BF16 control"))["no correction"]
        == looks(("no correction",))["no correction"]
    )
    assert len({style["color"] for style in looks(("x", "no correction", "BF16 control")).values()}) == 3


@pytest.mark.parametrize("name", ["hacking_fig2", "cancel_tab3", "cancel_tab2"])
def test_results_without_the_arms_draw_in_silence(name, tmp_path):
    results = _made([("another", "a", 0, [0.0, 1.0])], entropy=1.0, rms_log_rho=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert render(import_module(FIGURES[name].module).draw, results, tmp_path, name)[0].is_file()
        figure = draw_panels(results, ("another",), (REWARD,))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["another"]
