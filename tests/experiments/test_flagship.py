"""The flagship: its demo is the regime, its noise levels are in order, its rule finds an injected effect."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments import regimes
from experiments.studies import flagship
from simlab.core.paths import checkout_root
from simlab.engines.catalog import find_pair
from simlab.models.config import TransformerConfig
from simlab.models.parameters import init_params
from simlab.models.transformer import response_logps
from simlab.studies.verdicts import decide_family
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


def inject_fall(fall: float) -> Any:
    """Return results in which the uncorrected arm loses `fall` of its reward while its mismatch grows."""
    done = np.arange(100) / 100
    rows = []
    for arm, start, seed in product(("no correction", "TIS", "BF16 control"), range(4), range(2)):
        noise = np.random.default_rng([start, seed]).normal(0, 0.01, 100)
        hit = (arm == "no correction") * fall * done
        columns = {"reward": 0.7 - hit, "mean_rho": 0.9 - hit / 2, "rms_log_rho": np.exp(hit)}
        row = pd.DataFrame({name: curve + noise for name, curve in columns.items()})
        rows.append(
            row.assign(
                arm=arm, warm_start=f"w{start}", seed=seed, step=row.index, tokens=10, low=0.0, high=0.01
            )
        )
    table = pd.concat(rows)
    return SimpleNamespace(table=lambda name: table)  # noqa: ARG005 - steps and bins in one


@pytest.mark.parametrize(
    ("fall", "words"),
    [(0.6, ["supported"] * 2), (0.0, ["negligible"] * 2), (-0.6, ["contradicted"] * 2)],
)
def test_flagship_finds_injected_fall(fall, words):
    found = {each.trial.claim: each for each in flagship.collect_evidence(inject_fall(fall))}
    assert [each.primary.verdict for each in decide_family([found["H4"], found["H7"]])] == words
    assert ("L3" in found) == (fall != 0)  # without a loss there is no share of it
    if fall:
        assert found["L3"].primary.estimate == pytest.approx(1.0, abs=1e-6)
