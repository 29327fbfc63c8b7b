"""Names, overrides, errors, sweeps, rollout terms, and the switch."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import (
    OBJECTIVES,
    TokenBatch,
    get_objective,
    objective_value,
    override_defaults,
    override_names,
    prepare_batch,
    resolve,
    rollout_terms,
    token_coefficients,
    value_from_terms,
    with_overrides,
)
from tests.objectives.batches import batch_of, random_batch

PRESETS = {
    "reinforce",
    "rloo",
    "ppo",
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "gmpo",
    "cispo",
    "sapo",
    "grpo_fix",
    "grpo_fix_weight",
    "dfpo_none",
    "dfpo_min",
    "dfpo_orth",
    "dfpo_posorth",
    "dfpo_rebalance",
    "gspo_bias",
    "gspo_noise",
    "dppo_tv",
    "dppo_kl",
    "ipo",
    "kpop",
    "drpo",
    "vespo",
    "luspo",
    "m2po",
    "gpg",
    "dro",
    "clip_cov",
    "kl_cov",
}


def test_presets_are_there_and_say_where_they_come_from():
    assert set(OBJECTIVES) >= PRESETS
    assert all(objective.source for objective in OBJECTIVES.values())


DEFAULTS = [
    ("grpo", {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": np.inf}),
    ("dapo", {"clip_low": 0.2, "clip_high": 0.28, "group_filter": True}),
    ("gspo", {"clip_low": 3e-4, "clip_high": 4e-4}),
    ("dfpo_posorth", {"clip_low": 3e-4, "clip_high": 4e-4}),
    ("gmpo", {"clip_low": 0.4, "clip_high": 0.4}),
    ("grpo+tis", {"correction_clip": 2.0}),
    ("grpo+seq_mis", {"correction_clip": 2.0}),
    ("grpo+icepop", {"correction_clip": (0.5, 5.0)}),
    ("grpo+acrl", {"acrl_gamma": 0.65, "acrl_clip": 3.0, "acrl_level": "group", "acrl_reference": None}),
    ("sapo", {"sapo_tau_positive": 1.0, "sapo_tau_negative": 1.05}),
    ("gspo_bias", {"distortion_delta": 2.0, "distortion_threshold": 0.1}),
    ("gspo_noise", {"distortion_std": 0.2}),
    ("grpo+geo_mask", {"rejection_bounds": (0.999, 1.001), "baseline": "survivors"}),
    ("grpo+opsm", {"opsm_delta": 1e-4}),
    ("dppo_tv", {"divergence_low": 0.2, "divergence_high": 0.2, "ratio_cap": 20, "anchor": "rollout"}),
    ("dppo_kl", {"divergence_low": 0.05, "divergence_high": 0.05, "ratio_cap": 20, "anchor": "rollout"}),
    ("ipo", {"divergence_bound": 0.3, "ratio_cap": 1e4, "anchor": "rollout"}),
    ("kpop", {"kpop_bound": 0.1, "anchor": "rollout"}),
    ("drpo", {"drpo_delta": 12.5, "anchor": "rollout"}),
    ("vespo", {"vespo_k_positive": 2, "vespo_lambda_positive": 3, "ratio_cap": 3, "anchor": "rollout"}),
    ("vespo", {"vespo_k_negative": 3, "vespo_lambda_negative": 2}),
    ("luspo", {"clip_low": 2e-3, "clip_high": 2.5e-3, "aggregation": "seq-mean-token-sum"}),
    ("m2po", {"m2_threshold": 0.04}),
    ("gpg", {"advantage": "gpg", "aggregation": "token-mean"}),
    ("dro", {"dro_beta": 0.1}),
    ("clip_cov", {"cov_ratio": 2e-4, "cov_low": 1, "cov_high": 5, "clip_low": 0.2, "clip_high": 0.2}),
    ("kl_cov", {"kl_cov_ratio": 2e-4, "kl_cov_coefficient": 0.1}),
    ("grpo+rollout_kl", {"rollout_kl_coefficient": 1e-3}),
    ("gpg+score_centering", {"top_k": np.inf}),
    ("grpo+kpop", {"kpop_bound": 0.1}),
    ("grpo+kpop_mask", {"kpop_bound": 0.1}),
    ("grpo+m2_mask", {"m2_threshold": 0.04}),
    ("grpo+prob_diff", {"prob_diff_bounds": (-0.2, 0.2)}),
    ("grpo+trm", {"rejection_bounds": 0.05}),
    ("grpo+vaco", {"vaco_bound": 0.3, "correction_clip": 2}),
]


@pytest.mark.parametrize(("name", "defaults"), DEFAULTS)
def test_overriding_with_the_default_changes_nothing(name, defaults):
    assert resolve(name, **defaults) == get_objective(name)
    assert set(defaults) <= set(override_names(get_objective(name)))


def test_unknown_names_are_answered_with_the_valid_ones():
    batch = random_batch(0)
    with pytest.raises(ValueError, match=r"clip_hi.*did you mean 'clip_high'.*clip_low.*dual_clip"):
        objective_value("grpo", batch, clip_hi=0.3)
    with pytest.raises(ValueError, match=r"'dual_clip'.*allowed: advantage, clip_low, clip_high"):
        token_coefficients("gspo", batch, dual_clip=3.0)
    with pytest.raises(ValueError, match="baseline"):
        objective_value("grpo", batch, baseline="all")
    with pytest.raises(ValueError, match=r"objective 'gprpo'.*did you mean 'grpo'"):
        objective_value("gprpo", batch)
    with pytest.raises(ValueError, match=r"modifier 'tiss'.*did you mean 'tis'"):
        objective_value("grpo+tiss", batch)
    with pytest.raises(ValueError, match=r"aggregation 'mean'.*token-mean"):
        objective_value("grpo", batch, aggregation="mean")
    with pytest.raises(ValueError, match=r"baseline 'some'.*all, survivors"):
        objective_value("grpo+k3_mask", batch, baseline="some")
    with pytest.raises(ValueError, match=r"acrl_level 'token'.*sequence, group, batch"):
        objective_value("grpo+acrl", batch, acrl_level="token")
    with pytest.raises(ValueError, match="two modifiers of 'correction'"):
        get_objective("grpo+tis+acrl")
    with pytest.raises(ValueError, match="used by 2 stages"):
        objective_value("grpo+geo_mask+k3_mask", batch, rejection_bounds=0.1)


def test_batches_that_do_not_fit_are_refused():
    batch = random_batch(0)
    with pytest.raises(ValueError, match="group_size 3"):
        objective_value("grpo", replace(batch, group_size=3))
    with pytest.raises(ValueError, match="logp_infer has shape"):
        objective_value("grpo", replace(batch, logp_infer=batch.logp_infer[:, 1:]))
    with pytest.raises(ValueError, match="rewards has shape"):
        objective_value("grpo", replace(batch, rewards=batch.rewards[:, None]))
    with pytest.raises(ValueError, match=r"TokenBatch\.values"):
        objective_value("ppo", batch)


def test_numpy_in_double_precision_is_accepted():
    batch = random_batch(0)
    fields = {
        name: np.float64(getattr(batch, name)) for name in ("logp", "logp_train", "logp_infer", "rewards")
    }
    double = replace(batch, **fields, mask=np.int64(batch.mask))
    np.testing.assert_array_equal(token_coefficients("grpo", double), token_coefficients("grpo", batch))


def test_numbers_may_be_sweep_axes():
    batch = random_batch(1)
    bounds = jnp.float32([0.01, 0.1, 0.3])
    swept = jax.jit(
        jax.vmap(lambda high: objective_value("dapo+tis", batch, clip_high=high, correction_clip=high))
    )
    one_by_one = [objective_value("dapo+tis", batch, clip_high=x, correction_clip=x) for x in bounds]
    # Same work in another order: a few roundings of numbers of order one.
    np.testing.assert_allclose(swept(bounds), one_by_one, atol=1e-6)
    assert np.ptp(one_by_one) > 1e-3


def test_an_objective_is_a_pytree_of_its_numbers():
    batch = random_batch(2)
    value = jax.jit(objective_value)
    for high in (0.05, 0.3):
        changed = with_overrides(OBJECTIVES["grpo"], clip_high=high)
        np.testing.assert_allclose(
            value(changed, batch), objective_value("grpo", batch, clip_high=high), atol=1e-6
        )
    assert value._cache_size() == 1


def test_minibatches_of_whole_groups_reuse_the_rollout_terms():
    """Batch-wide quantities (whitening, X) stay those of the rollout; the parts add up to the whole."""
    batch = prepare_batch(random_batch(3))
    objective = resolve("rloo+acrl", advantage="whitened", aggregation="token-sum", acrl_level="batch")
    terms = rollout_terms(objective, batch)
    parts = [
        jax.tree.map(lambda x, rows=rows: x[rows] if np.ndim(x) else x, (batch, terms))
        for rows in (slice(0, 4), slice(4, 8))
    ]
    halves = [value_from_terms(objective, *part) for part in parts]
    np.testing.assert_allclose(sum(halves), value_from_terms(objective, batch, terms), atol=1e-6)


def test_detached_coefficients_give_same_gradient():
    batch = random_batch(4)
    for name in ("gmpo+mis", "dfpo_min_no_stop"):
        c = token_coefficients(name, batch)
        np.testing.assert_array_equal(jax.grad(lambda logp, c=c: jnp.sum(c * logp))(batch.logp), c)


def test_group_filter_leaves_the_denominator():
    batch = batch_of(np.zeros((4, 1)), [1, 0, 1, 1], 2)
    kept = token_coefficients("grpo", batch, group_filter=True, advantage="grpo_no_std")
    np.testing.assert_array_equal(kept, [[0.25], [-0.25], [0], [0]])
    assert token_coefficients("grpo", batch, advantage="grpo_no_std")[0, 0] == 0.125


def test_positional_order_of_the_batch():
    assert list(TokenBatch.__dataclass_fields__) == [
        "logp",
        "logp_train",
        "logp_infer",
        "rewards",
        "mask",
        "group_size",
        "key",
        "logp_reference",
        "values",
        "sum_squared_probabilities",
        "tokens",
        "logp_vocabulary",
        "logp_infer_vocabulary",
    ]


def test_defaults_name_choices_and_show_numbers():
    defaults = override_defaults(get_objective("ipo+prob_diff"))
    assert set(defaults) == set(override_names(get_objective("ipo+prob_diff")))
    assert defaults["anchor"] == "rollout"
    assert defaults["aggregation"] == "token-mean"
    assert (defaults["divergence_bound"], defaults["prob_diff_bounds"]) == (0.3, (-0.2, 0.2))
    assert override_defaults(get_objective("grpo"))["dual_clip"] == "inf"
