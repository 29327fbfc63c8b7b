"""The contract of every preset and of its combinations with modifiers, in two compiled programs."""

from functools import cache

import jax
import numpy as np
import pytest

from simlab.objectives import (
    OBJECTIVE_MODIFIERS,
    OBJECTIVES,
    get_objective,
    objective_value,
    resolve,
    token_coefficients,
)
from tests.contracts import objective_contract as contract
from tests.tolerances import assert_exact

NAMES = (
    *OBJECTIVES,
    *(f"grpo+{modifier}" for modifier in OBJECTIVE_MODIFIERS if modifier != "score_centering"),
    "gpg+score_centering",
    "ipo+score_centering+trm",
    "reinforce+tis",
    "ppo+acrl",
    "dapo+acrl",
    "rloo+seq_tis",
    "gspo+seq_mis",
    "gmpo+mis",
    "sapo+icepop",
    "cispo+k3_mask",
    "dfpo_min+tis",
    "dfpo_posorth+k3_mask",
    "dfpo_orth+acrl",
    "grpo+geo_mask+k3_mask+tis+opsm",
    "dppo_tv+rollout_kl",
    "ipo+trm+vaco",
    "kl_cov+kpop",
    "dro+m2_mask+seq_mis",
)
# The others read theta or the vocabulary.
CORRECTIONS = tuple(
    modifier
    for modifier in OBJECTIVE_MODIFIERS
    if OBJECTIVE_MODIFIERS[modifier].field in ("correction", "rejections")
)


def _switch(index, batch):
    return jax.lax.switch(index, [contract.evaluator(name) for name in NAMES], batch)


@cache
def _program(vmapped: bool):
    return jax.jit(jax.vmap(_switch, in_axes=(None, 0)) if vmapped else _switch)


def compiled(name, vmapped=False):
    index = NAMES.index(name)
    return lambda batch: _program(vmapped)(index, batch)


@pytest.mark.parametrize("name", NAMES)
def test_finite_at_the_edges_and_learns(name):
    contract.check_finite(compiled(name))
    contract.check_learns(compiled(name))


@pytest.mark.parametrize("name", NAMES)
def test_padding_never_matters(name):
    contract.check_padding(compiled(name))


@pytest.mark.parametrize("name", [n for n in NAMES if not contract.draws_noise(get_objective(n))])
def test_order_of_groups_does_not_matter(name):
    contract.check_permutation(compiled(name))


@pytest.mark.parametrize("name", [n for n in NAMES if contract.compares_in_group(get_objective(n))])
def test_nothing_is_learnt_from_equal_rewards(name):
    contract.check_equal_rewards(compiled(name))


@pytest.mark.parametrize("name", NAMES)
def test_jit_is_eager(name):
    contract.check_compiled(contract.evaluator(name), compiled(name))


@pytest.mark.parametrize("name", NAMES)
def test_vmap_is_a_loop(name):
    contract.check_vmap(compiled(name), compiled(name, vmapped=True))


@pytest.mark.parametrize("modifier", CORRECTIONS)
@pytest.mark.parametrize("base", ["grpo", "gmpo", "dfpo_min"])
def test_identical_engines_make_corrections_the_identity(base, modifier):
    batch = contract.no_tokens(contract.ordinary_batch())
    batch = contract.replace(batch, logp_infer=batch.logp_train)
    corrected, plain = contract.evaluator(f"{base}+{modifier}")(batch), contract.evaluator(base)(batch)
    assert_exact(corrected[1], plain[1])
    assert corrected[0] == plain[0]


def test_the_contract_needs_its_teeth():
    """A broken objective fails: one that reads padding, and one that ignores the order of the groups."""

    def reads_padding(batch):
        return batch.logp.sum(), jax.numpy.ones_like(batch.logp)

    with pytest.raises(AssertionError):
        contract.check_padding(reads_padding)
    with pytest.raises(AssertionError):
        contract.check_finite(reads_padding)

    def weighs_rows(batch):
        rows = jax.numpy.arange(batch.logp.shape[0], dtype="float32")[:, None]
        return objective_value("grpo", batch), token_coefficients("grpo", batch) * rows

    with pytest.raises(AssertionError):
        contract.check_permutation(weighs_rows)
    with pytest.raises(AssertionError):
        contract.check_compiled(lambda b: (0.0, np.zeros(b.logp.shape)), contract.evaluator("grpo"))


def test_noise_of_zero_width_keeps_the_order_of_groups():
    quiet = resolve("gspo_noise", distortion_std=0.0)
    contract.check_permutation(contract.evaluator(quiet))
