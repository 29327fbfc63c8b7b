"""Equal to what verl 0.9.1 logs under the names of VERL_ALIASES, on the batches of `scripts/verl_goldens.py`.

SCALES bounds the round-off: the mean absolute size of what is summed (in float64), times the number of
additions and EPS; see tests/objectives/framework_comparison.py.
"""

from pathlib import Path

import jax
import numpy as np
import pytest

from simlab.metrics import METRICS, OBJECTIVE_METRICS, VERL_ALIASES, WEIGHT_METRICS
from simlab.objectives import TokenBatch, prepare_batch
from tests.metrics.strategies import compiled
from tests.objectives.framework_comparison import EPS, FACTORS, GROUP_SIZE, worst
from tests.objectives.framework_comparison import batch_from as batch_of_losses
from tests.objectives.test_against_verl import GRPO, OBJECTIVE_OF, REJECTIONS, WEIGHTS, with_rejection

GOLDENS = Path(__file__).parents[1] / "objectives" / "goldens"
BATCHES = ("moderate", "extreme")
# Logged for each of WEIGHTS (or REJECTIONS) as "<rule>:<name>"; the others are logged once.
UNBOUNDED = "rollout_corr/rollout_is_min"  # verl does not clamp the smallest product of a sequence


@pytest.fixture(scope="module")
def goldens():
    with np.load(GOLDENS / "verl_metrics.npz") as arrays:
        return dict(arrays)


def batch_from(arrays, label: str) -> TokenBatch:
    names = ("logp_train", "logp_infer", "mask")
    logp_train, logp_infer, mask = (arrays[f"{label}/{name}"] for name in names)
    rewards = np.zeros(len(mask), np.float32)
    return TokenBatch(logp_train, logp_train, logp_infer, rewards, mask, GROUP_SIZE)


def scales(batch: TokenBatch) -> dict[str, float]:
    """Size of the summed terms of each metric that is not a plain mean of numbers of order one."""
    real = batch.mask != 0
    wide = {name: getattr(batch, name).astype(np.float64) for name in ("logp_train", "logp_infer")}
    log_rho = np.where(real, wide["logp_train"] - wide["logp_infer"], 0)
    length, sums = real.sum(1), np.abs(log_rho).sum(1)
    tokens = log_rho[real]
    squares = np.exp(2 * np.clip(log_rho.sum(1), -20, 20))
    p = [np.exp(wide[name][real]) for name in wide]
    ppl = {name: np.exp(-np.where(real, wide[name], 0).sum(1) / length) for name in wide}
    mean_logp = max(np.abs(wide[name][real]).mean() for name in wide)
    return {
        "k1_kl": np.abs(tokens).mean(),
        "k3_kl": np.abs(tokens).mean() + np.exp(tokens).mean() + 1,
        "chi2_token": np.exp(2 * np.clip(tokens, -20, 20)).mean() + 1,
        # An error of the exponent is a relative error of its exp.
        "chi2_sequence": (squares * (1 + 2 * sums)).mean() + 1,
        "training_ppl": (ppl["logp_train"] * (1 + mean_logp)).mean(),
        "rollout_ppl": (ppl["logp_infer"] * (1 + mean_logp)).mean(),
        "ppl_ratio": (np.exp(np.abs(log_rho.sum(1) / length)) * (1 + sums / length)).mean(),
        # The difference of two means of log-probs.
        **{
            f"log_ppl_{name}": 2 * mean_logp * np.max(1 + sums / length)
            for name in ("diff", "abs_diff_per_token", "diff_max", "diff_min")
        },
        "training_log_ppl": mean_logp,
        "rollout_log_ppl": mean_logp,
        "pcc": max(np.mean(x**2) / np.var(x) for x in p),
        "max_rho_sequence": np.exp(np.clip(log_rho.sum(1), -20, 20)).max() * (1 + sums.max()),
        "min_rho_sequence": np.exp(np.clip(log_rho.sum(1), -20, 20)).min() * (1 + sums.max()),
        "sequence": 1 + sums.max(),
    }


def check_metrics(arrays, label: str) -> None:
    """Every aliased metric of one batch; `test_verl_live` calls it with fresh goldens."""
    batch = batch_from(arrays, label)
    size, every = scales(batch), compiled(batch)
    logged = dict(zip(map(str, arrays["names"]), arrays[f"{label}/metrics"], strict=True))
    assert {name.rpartition(":")[2] for name in logged} >= set(VERL_ALIASES) - {"actor/pg_clipfrac"}
    for name, golden in logged.items():
        rule, _, key = name.rpartition(":")
        if key not in VERL_ALIASES or not_comparable(rule, key, golden, label):
            continue
        alias, ours = measured(key, rule, batch, every)
        # Weights are at most 5; those of a sequence have an exponent that is a sum.
        order = 5 * size["sequence"] if rule.startswith("seq") and alias in WEIGHT_METRICS else 5
        allowed = 2 * (batch.mask.sum() + FACTORS) * EPS * size.get(alias, order)
        if alias == "weight_std":
            # verl subtracts squares: the error of the variance, over twice the root.
            allowed = 5 * allowed / max(golden, np.sqrt(5 * allowed))
        floor = np.exp(-20.0) if key == UNBOUNDED else 0.0
        worst(np.asarray(ours), np.asarray(golden), np.asarray(allowed + floor), name)


def not_comparable(rule: str, key: str, golden: float, label: str) -> bool:
    """Overflow in verl, k3 where only simlab clamps, and the fraction below MIS's made-up bound of 1e-30."""
    clamped = key == "rollout_corr/k3_kl" and label == "extreme"
    made_up = rule.endswith("mis") and key.endswith("fraction_low")
    return not np.isfinite(golden) or clamped or made_up


@jax.jit
def weighed(weights, mask):
    """All metrics of weights in one program."""
    return {name: metric(weights, mask) for name, metric in WEIGHT_METRICS.items()}


def measured(key: str, rule: str, batch: TokenBatch, every: dict):
    """Our name and our number for what verl logged under `key` when it applied `rule`."""
    alias = VERL_ALIASES[key]
    if rule.startswith("seq") and alias in ("weight_max", "weight_min"):
        alias = alias.replace("weight_", "") + "_rho_sequence"
    if alias in OBJECTIVE_METRICS:
        assert rule in REJECTIONS
        return alias, OBJECTIVE_METRICS[alias](with_rejection(GRPO, rule), batch)
    if alias in WEIGHT_METRICS:
        return alias, weighed(WEIGHTS[rule](prepare_batch(batch), None), batch.mask)[alias]
    if alias.startswith("fraction_rho"):
        return alias, _fraction(alias, rule, batch)
    return alias, every[alias]


def _fraction(alias: str, rule: str, batch: TokenBatch):
    """Ratios beyond the bounds of a weight rule; of a single C, the lower bound is 1 / C."""
    clip = WEIGHTS[rule].correction_clip
    low, high = clip if isinstance(clip, tuple) else (1 / clip, clip)
    if rule.startswith("seq"):
        # Over sequences: one token each, with the product of rho.
        total = np.where(batch.mask, batch.logp_train - batch.logp_infer, 0).sum(1, keepdims=True)
        zero, one = np.zeros_like(total), np.ones_like(total)
        batch = TokenBatch(zero, total, zero, batch.rewards, one, GROUP_SIZE)
    return METRICS[alias](batch, bound=high if alias.endswith("above") else low)


@pytest.mark.parametrize("label", BATCHES)
def test_metrics_are_verls(goldens, label):
    check_metrics(goldens, label)


def test_every_alias_points_at_a_metric():
    assert set(VERL_ALIASES.values()) <= {*METRICS, *OBJECTIVE_METRICS, *WEIGHT_METRICS}
    assert len({*METRICS} & {*OBJECTIVE_METRICS} | {*METRICS} & {*WEIGHT_METRICS}) == 0


# Not dapo: it counts the tokens of the groups that it drops out, too.
@pytest.mark.parametrize("name", ["grpo", "rloo", "gspo"])
def test_clip_fraction_is_pg_clipfrac_and_its_lower_part(name):
    with np.load(GOLDENS / "verl_losses.npz") as arrays:
        for label in ("moderate", "wide"):
            golden = arrays[f"{label}/clipped"][list(arrays["names"]).index(name)]
            ours = OBJECTIVE_METRICS["clip_fraction"](OBJECTIVE_OF[name], batch_of_losses(arrays, label))
            assert golden > 0
            # Fractions of at most 320 tokens: two neighbors are further apart.
            assert float(ours) == pytest.approx(float(golden), abs=1e-4)
