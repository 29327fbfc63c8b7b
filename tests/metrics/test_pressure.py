"""What clipping, rejection and distortion do to a batch."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from simlab.metrics import OBJECTIVE_METRICS, clipped_tokens
from simlab.objectives import resolve
from tests.objectives.batches import batch_of

# One group of two: advantages +A and -A with A = 0.5 / (sqrt(0.5) + 1e-6).
A = 0.5 / (np.sqrt(0.5) + 1e-6)
LOG_R = np.log([[1.5, 1.1, 0.5, 9], [0.7, 1.3, 1.0, 9]])
MASK = [[1, 1, 1, 0], [1, 1, 1, 0]]


@pytest.fixture
def batch():
    return batch_of(LOG_R, [1, 0], 2, mask=MASK)


def measure(name, objective, batch) -> float:
    return float(OBJECTIVE_METRICS[name](objective, batch))


def test_clip_fractions_by_sign(batch):
    # 1.5 is above 1.2 with A > 0, 0.7 below 0.8 with A < 0; dual clip at 1.25 adds 1.3 with A < 0.
    assert np.argwhere(clipped_tokens("grpo", batch)).tolist() == [[0, 0], [1, 0]]
    assert measure("clip_fraction", "grpo", batch) == pytest.approx(2 / 6)
    assert measure("clip_fraction_positive", "grpo", batch) == pytest.approx(1 / 6)
    assert measure("clip_fraction_negative", "grpo", batch) == pytest.approx(1 / 6)
    dual = resolve("grpo", dual_clip=1.25)
    assert measure("clip_fraction_negative", dual, batch) == pytest.approx(2 / 6)


def test_what_zeroes_a_coefficient_without_a_clip_does_not_count(batch):
    rejected = replace(batch, logp_infer=batch.logp_train - 5)
    for modifier in ("+mis", "+geo_mask", "+opsm"):
        assert measure("clip_fraction", f"grpo{modifier}", rejected) == pytest.approx(2 / 6)
    assert measure("clip_fraction", "cispo", batch) == 0
    assert measure("clip_fraction", "grpo", replace(batch, rewards=np.float32([1, 1]))) == 0


def test_a_regularizer_hides_no_clipped_token(batch):
    apart = replace(batch, logp_infer=batch.logp_train - 0.1)
    assert np.array_equal(clipped_tokens("grpo+rollout_kl", apart), clipped_tokens("grpo", apart))


def test_delta_clip_j_is_value_of_clipped_tokens(batch):
    # X = r A / (G |o|) of the two clipped tokens.
    expected = -(1.5 * A - 0.7 * A) / (2 * 3)
    assert measure("delta_clip_j", "grpo", batch) == pytest.approx(expected, rel=1e-5)
    assert measure("delta_clip_j", resolve("grpo", clip_low=1.0, clip_high=9.0), batch) == 0


def test_hacking_j_sums_the_advantages_of_the_distorted_tokens(batch):
    low = replace(batch, logp_train=np.float32([[-3, -1, -3, -9], [-3, -1, -1, -9]]))
    expected = (2 - 1) * A * (3.0 - 1)
    assert measure("hacking_j", resolve("gspo_bias", distortion_delta=3.0), low) == pytest.approx(
        expected, rel=1e-5
    )
    assert measure("hacking_j", resolve("gspo_bias", distortion_delta=1.0), low) == 0
    assert measure("hacking_j", "gspo", low) == 0


def test_rejected_fractions_are_of_real_tokens_and_sequences(batch):
    log_rho = np.float32([[0, 0, 0, 9], [1, 0, 0, 9]])
    off = replace(batch, logp_infer=batch.logp_train - log_rho)
    assert measure("rejected_token_fraction", "grpo+geo_mask", off) == pytest.approx(3 / 6)
    assert measure("rejected_sequence_fraction", "grpo+geo_mask", off) == pytest.approx(1 / 2)
    assert measure("rejected_token_fraction", "grpo", off) == 0
    # The second response has A < 0 and has drifted away: mean of logp_train - logp > 0.
    drifted = replace(batch, logp=batch.logp_train - np.float32(0.1))
    assert measure("rejected_token_fraction", "grpo+opsm", drifted) == pytest.approx(3 / 6)
    # Equal rewards are not a rejection.
    assert measure("rejected_token_fraction", "dapo", replace(batch, rewards=np.float32([1, 1]))) == 0


def test_asym_is_the_variance_of_the_sequences_push():
    # Sequence ratios 1.0002 and 0.9999: inside GSPO's clip.
    batch = batch_of(np.log([[1.0002] * 4, [0.9999] * 4]), [1, 0], 2)
    plain = np.var([1.0002 * A, -0.9999 * A])
    assert measure("asym", "gspo", batch) == pytest.approx(plain, rel=1e-5)
    assert measure("asym", "dfpo_min", batch) == pytest.approx(np.var([0.9999 * A, -0.9999 * A]), rel=1e-5)
    assert measure("asym", "dfpo_min", batch) < measure("asym", "gspo", batch)
    # Sequences without tokens take no part: one is left, it does not vary.
    alone = replace(batch, mask=np.array([[True] * 4, [False] * 4]))
    assert measure("asym", "gspo", alone) == 0


@pytest.mark.parametrize("name", OBJECTIVE_METRICS)
def test_padding_is_never_read(batch, name):
    batch = replace(batch, logp_infer=batch.logp_train - np.float32(0.05))
    columns = ("logp", "logp_train", "logp_infer")
    spoiled = {column: np.where(batch.mask, getattr(batch, column), np.float32(np.nan)) for column in columns}
    objective = resolve("gspo_bias+tis+k3_mask")
    assert measure(name, objective, replace(batch, **spoiled)) == measure(name, objective, batch)


@pytest.mark.parametrize("preset", ["sapo", "dfpo_posorth", "gspo_noise", "reinforce+acrl"])
def test_any_kind_of_objective_can_be_measured(batch, preset):
    batch = replace(batch, key=jax.random.key(0))
    for name in OBJECTIVE_METRICS:
        assert np.isfinite(measure(name, preset, batch)), name
