"""The board: every row computes, verdicts are those we stand by, and mutations are caught."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from simlab.cli import budget_command
from simlab.cli import theory as theory_command
from simlab.objectives import token_coefficients
from simlab.studies.exact import compute_row, exact_checks
from simlab.studies.loading import load_claims
from simlab.theory import cancellation, hacking
from simlab.theory.bounds import Bound
from simlab.theory.checks import acrl_checks as acrl
from simlab.theory.checks import cancel_checks as cancel
from simlab.theory.checks import hacking_checks
from simlab.theory.checks import lr_checks as lr

FALSE_AS_PRINTED = {
    ("H5", "hacking Eq. 10, 31", "J' - J is the sum over t of Cov(X_t, 1/rho_t)"),
    ("L8", "lr Thm. 3.1", "the error reaches the growth with T^2"),
    ("L8", "lr Thm. B.1, proof", "the bound with log pi_infer differentiated"),
    (
        "C6",
        "cancel Eq. 5, Cor. 3.2",
        "equivalent answers drift by eta c (kappa_a - kappa_b), until the pair's entropy is 0",
    ),
    ("C8", "cancel App. D.3, Eq. 72, 73", "sum A s = 0 cancels shared tokens under length normalization"),
}
CHECKS = exact_checks(load_claims())
SLOW_ROWS = ("the same for every pair of engines", "bias and variance of every correction at equal mismatch")


@pytest.fixture(scope="module")
def rows():
    return [compute_row(*check) for check in CHECKS if check[1].text not in SLOW_ROWS]


def test_verdicts(rows):
    found = {(r["claim"], r["equation"], r["statement"]) for r in rows if r["verdict"] != "holds"}
    assert found == FALSE_AS_PRINTED
    for row in rows:
        assert np.isfinite(row["residual"])
        assert row["found"]
        assert row["rule"]


def test_claims_of_the_issue_are_there():
    ids = {claim for claim, _ in CHECKS}
    assert ids >= {"H3", "H4", "H5", "H6", "H19", "L8", "L9", "L10", "V4", "A11", "A15"}
    assert ids >= {"C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C14", "C15"}


@pytest.mark.slow
def test_the_slow_rows_hold():
    for check in CHECKS:
        if check[1].text in SLOW_ROWS:
            assert compute_row(*check)["verdict"] == "holds"


def row_of(module, check):
    compute = getattr(module, check)
    (found,) = ((claim, rule) for claim, rule in CHECKS if rule.estimand.compute is compute)
    return compute_row(*found)


def mutate(monkeypatch, module, name, change):
    original = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **kwargs: change(original(*args, **kwargs)))


def tighter(bound):
    return Bound(bound.value, bound.bound / 20)


@pytest.mark.parametrize(
    ("module", "check", "ingredient", "change"),
    [
        (hacking_checks, "survival_curves", "survival_bias", lambda bias: -bias),
        (hacking_checks, "inverse_rho", "inverse_rho_mean", lambda both: (2 - both[0], both[1])),
        (hacking_checks, "plain_rho", "rho_variance", lambda variance: -variance),
        (hacking_checks, "survival_of_formats", "mean_rho_in_bins", lambda both: (2 - both[0], both[1])),
        (hacking_checks, "rho_std_against_bits", "predict_rho_std", lambda spread: spread * 1.2),
        (hacking_checks, "clipping_gap", "reweighting_gap", lambda both: (both[0], -both[1])),
        (acrl, "entropy_of_update", "entropy_change", lambda change: -change),
        (cancel, "check_clipped", "clip_leftover", lambda sums: {**sums, "gradient": -sums["gradient"]}),
        (cancel, "check_coupled", "pair_leftover", lambda both: (both[0], -both[1])),
        (cancel, "kl_drift", "kl_after_step", lambda both: (both[0], 2 * both[1])),
        (lr, "drift_of_states", "occupancy_drift", lambda found: [tighter(bound) for bound in found]),
        (lr, "linear_bound", "worst_case", lambda both: (both[0], tighter(both[1]))),
    ],
)
def test_a_wrong_sign_or_factor_changes_the_verdict(monkeypatch, module, check, ingredient, change):
    assert row_of(module, check)["verdict"] == "holds"
    mutate(monkeypatch, module, ingredient, change)
    assert row_of(module, check)["verdict"] != "holds"


def test_the_printed_beta_is_caught(monkeypatch):
    def with_printed_beta(preset, weights, advantages):
        if preset != "dfpo_rebalance":
            return cancellation.transform_weights(preset, weights, advantages)
        return np.stack(
            [cancellation.rebalance_as_printed(*g) for g in zip(weights, advantages, strict=True)]
        )

    monkeypatch.setattr(cancel, "transform_weights", with_printed_beta)
    assert row_of(cancel, "projections")["verdict"] != "holds"


def test_printed_gap_is_right_for_one_token_not_three():
    for length, right in ((1, True), (3, False)):
        pair = hacking_checks.pair(length, noise_std=0.01)
        values = np.random.default_rng(0).normal(size=(len(pair.space.tokens), 1)) / length
        gap = hacking.objective_gap(pair, np.repeat(values, length, 1))
        assert (abs(gap.printed / gap.exact - 1) < 1e-9) == right


def test_a_missing_stop_gradient_is_caught():
    log_ratio, rewards = cancel.random_groups(1)
    batch = cancellation.group_batch(log_ratio, rewards)
    kept = cancellation.objective_leftover("dfpo_min", batch)
    lost = cancellation.objective_leftover("dfpo_min_no_stop", batch)
    assert abs(kept[0][0]) < 2e-6 * kept[1][0]
    assert abs(lost[0][0]) > 1e-3 * lost[1][0]
    # As printed (A times the replaced weight, no score beside it) nothing at all is left without it.
    with jax.enable_x64():
        advantages = jnp.asarray(rewards[0] - rewards[0].mean())

        def printed(x):
            return (advantages * jnp.min(jnp.exp(x.mean(1)))).mean()

        gradient = np.asarray(jax.grad(printed)(jnp.asarray(log_ratio[0])))
    assert np.abs(gradient).max() < 1e-16
    assert float(jnp.abs(token_coefficients("dfpo_min", batch)).max()) > 0.01


@pytest.fixture(scope="module")
def app():
    found = typer.Typer()
    found.command("theory")(theory_command.theory)
    found.command("budget")(budget_command.budget)
    return found


def test_budget_command(app):
    result = CliRunner().invoke(app, ["budget", "--format", "bf16", "--length", "1024", "--json"])
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)
    assert row["rho_std"] == pytest.approx(0.0045, abs=2e-4)
    assert 0.95 < row["ess"] < 1
    measured = CliRunner().invoke(app, ["budget", "--rho-std", "0.1"])
    assert measured.exit_code == 0
    assert "8192" in measured.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "bf6"], "did you mean 'bf16'"),
        ([], "must be given, and not both"),
        (["--format", "bf16", "--rho-std", "0.1"], "must be given, and not both"),
        (["--rho-std", "-1"], "rho_std must be between 0 and"),
    ],
)
def test_budget_command_refuses_bad_input(app, options, message):
    result = CliRunner().invoke(app, ["budget", *options])
    assert result.exit_code == 2
    assert message in result.stderr


def test_theory_command(app, monkeypatch):
    chosen = {name: claim for name, claim in load_claims().items() if name in ("A11", "A15")}
    monkeypatch.setattr("simlab.studies.loading.load_claims", lambda: chosen)
    result = CliRunner().invoke(app, ["theory", "--json"])
    assert result.exit_code == 0
    assert {row["claim"] for row in json.loads(result.stdout)} == {"A11", "A15"}
    table = CliRunner().invoke(app, ["theory"])
    assert "3 of 3 hold as printed" in table.stdout
