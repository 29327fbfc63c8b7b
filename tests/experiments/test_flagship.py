"""The flagship: its demo is the regime, its noise levels are in order."""

import jax
import jax.numpy as jnp
import pytest

from experiments import regimes
from simlab.core.paths import checkout_root
from simlab.engines.catalog import find_pair
from simlab.models.config import TransformerConfig
from simlab.models.parameters import init_params
from simlab.models.transformer import response_logps
from simlab.sweeps.config import run_config
from simlab.sweeps.file import read_file
from tests.training.recipes import QUICK

TINY = TransformerConfig(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=1, intermediate_size=32, qk_norm=False
)


def test_the_demo_is_the_regime_of_the_other_experiments():
    base = read_file(checkout_root() / "examples" / "flagship.toml").base
    own = {name: base[name] for name in ("warm_start", "steps")}
    assert own["warm_start"] in regimes.WARM_STARTS
    same = {"objective": "grpo"}
    assert run_config({**base, **same}) == run_config({**regimes.BASE, **same}, own)


@pytest.mark.slow
def test_doses_are_ordered_from_weak_to_strong():
    params = init_params(jax.random.key(0), TINY)
    prompts, responses = (
        jax.random.randint(jax.random.key(seed), (16, 8), 2, 30, jnp.int32) for seed in (1, 2)
    )
    score = jax.jit(
        lambda engine: response_logps(params, TINY, engine, prompts, responses).logp, compiler_options=QUICK
    )
    pairs = [find_pair(name) for name in (regimes.CONTROL, *regimes.NOISY)]
    errors = [float(jnp.std(score(pair.infer) - score(pair.train))) for pair in pairs]
    assert errors == sorted(errors)
    assert errors[-1] > 10 * errors[0]
