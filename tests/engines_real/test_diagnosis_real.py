"""Diagnose real vLLM logs: no fault, processed, stale, and after a reload that broke the experts."""

import pytest

from experiments.diagnosis_real import read_policy, reload_logs, sampler_logs
from simlab.diagnosis import diagnose_log
from tests.engines_real.frameworks import interpreter

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def params(tmp_path_factory):
    """A trained policy."""
    interpreter("vllm")
    return read_policy(tmp_path_factory.mktemp("start"))


def _print_answers(name, found):
    for detector, answer in found.items():
        print(f"{name:12s} {detector:14s} {answer.confidence:4.0%} {answer.verdict}")


@pytest.fixture(scope="module")
def reloads(params):
    """Diagnoses of vLLM with an FP8 cache: weights loaded well, and after a reload that broke the experts."""
    return [diagnose_log(log) for _, _, log in reload_logs(params)]


def test_diagnosis_finds_no_fault_in_an_fp8_cache(reloads):
    answer = reloads[0].answers["weight_sync"]
    assert not answer.has_fault, answer
    assert answer.confidence > 0.6


def test_diagnosis_of_a_broken_reload_is_not_wrong(reloads):
    """16 tokens of one form: the fault is named as weights or routing, or left unknown.

    How sure the answer is depends on the fit: its calibration is judged on held-out logs, not on one.
    """
    best = reloads[1].causes[0]
    assert best.cause in ("weight_sync", "routing", "unknown"), best


def test_diagnosis_tells_vllm_faults_apart(params):
    answers = [diagnose_log(log).answers for _, _, log in sampler_logs(params)]
    faultless, hot, cut, stuck, stale = answers
    for name, found in {
        "no_fault": faultless,
        "T = 0.7": hot,
        "top-p 0.8": cut,
        "stale": stale,
        "stuck": stuck,
    }.items():
        _print_answers(name, found)
    assert not any(
        answer.has_fault for name, answer in faultless.items() if name in ("weight_sync", "processing")
    )
    assert faultless["weight_sync"].verdict.startswith("number formats")
    measured = float(hot["processing"].verdict.split("about ")[1].split(" ")[0])
    assert abs(measured - 0.7) < 0.05, hot["processing"]
    assert "top-p" in cut["processing"].verdict
    assert stale["staleness"].has_fault
    assert not stale["weight_sync"].has_fault
    # Without versions the policies of a stuck engine look stale as well: named first, below one half.
    assert "broken weight sync" in stuck["weight_sync"].verdict
    assert not stuck["weight_sync"].verdict.startswith("another cause")
    for found in (faultless, stale, stuck):
        assert not found["processing"].has_fault
