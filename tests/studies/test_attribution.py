"""Exact shares, engines between two others, and the tables of an explanation."""

import math
from dataclasses import replace
from itertools import permutations

import jax
import numpy as np
import pytest

from simlab.engines import ENGINE_PAIRS, ENGINES, Engine, EnginePair, Site
from simlab.engines.engine import Linear
from simlab.models.config import MODELS
from simlab.models.parameters import init_params
from simlab.studies.attribution import between, differing, group_sites, shapley
from simlab.studies.explain import ExplainTarget, explain
from simlab.tasks import TASKS

NAMES = ("a", "b", "c", "d")


def _game(seed):
    """A random game of four players with values [3]; d adds nothing, b and c are interchangeable."""
    table, rng = {}, np.random.default_rng(seed)

    def value(chosen):
        key = ("a" in chosen, len(chosen & {"b", "c"}))
        if key not in table:
            table[key] = rng.normal(size=3)
        return table[key]

    return value


@pytest.mark.parametrize("seed", range(5))
def test_shapley_is_the_average_over_orders(seed):
    value = _game(seed)
    expected = dict.fromkeys(NAMES, 0.0)
    for order in permutations(NAMES):
        for place, name in enumerate(order):
            step = value(frozenset(order[: place + 1])) - value(frozenset(order[:place]))
            expected[name] = expected[name] + step / math.factorial(len(NAMES))
    found = shapley(value, NAMES)
    for name in NAMES:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-12)
    whole = value(frozenset(NAMES)) - value(frozenset())
    np.testing.assert_allclose(sum(found.values()), whole, atol=1e-12)
    np.testing.assert_allclose(found["d"], 0, atol=1e-12)
    np.testing.assert_allclose(found["b"], found["c"], atol=1e-12)


@pytest.mark.parametrize("name", ENGINE_PAIRS)
def test_all_differing_sites_lead_from_one_engine_to_the_other(name):
    train, infer = (ENGINES[part] for part in name.split("/"))
    sites = differing(train, infer)
    assert differing(between(train, infer, sites), infer) == []
    assert differing(between(train, infer, []), train) == []
    assert sorted(site for members in group_sites(sites).values() for site in members) == sorted(sites)
    for site in sites:
        assert differing(train, between(train, infer, [site])) == [site]
    if train is not infer and sites:
        dense = differing(train, infer, MODELS["tiny-dense"])
        assert not any(site.startswith("router") for site in dense)


@pytest.mark.slow
def test_shares_of_an_explanation_sum_to_the_whole():
    bf16 = Site.of("bf16")
    infer = replace(
        Engine(),
        projection=Linear(weights=bf16, activations=bf16),
        lm_head=Linear(weights=bf16, output=Site.of("e4m3fn")),
    )
    config = replace(MODELS["tiny-llama"], hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    params = init_params(jax.random.key(0), config)
    subject = ExplainTarget(
        params, config, TASKS["add"](), EnginePair(Engine(), infer), prompts=2, group_size=2
    )
    tables = explain(subject, lambda items, *_: items, top=3)
    assert tables["groups"][0]["group"] == "head"
    assert sum(row["shapley"] for row in tables["groups"]) == pytest.approx(1, abs=1e-12)
    for name in ("positions", "probabilities"):
        assert sum(row["share"] for row in tables[name]) == pytest.approx(1, abs=1e-12)
        assert sum(row["tokens"] for row in tables[name]) == tables["size"][0]["tokens"]
    assert [row["site"] for row in tables["sites"]] == differing(Engine(), infer)
    worst = tables["tokens"][0]
    assert abs(worst["log_rho"]) == max(abs(row["log_rho"]) for row in tables["tokens"])
    assert worst["log_rho"] == pytest.approx(math.log(worst["pi_train"] / worst["pi_infer"]))
    # Sites before the first that differs agree to the bit; from there on none does.
    errors = {row["site"]: row["relative_error"] for row in tables["autopsy"]}
    assert list(errors)[:3] == ["embedding", "layer 0 attention norm", "layer 0 qkv"]
    assert errors["embedding"] == errors["layer 0 attention norm"] == 0
    for place in ("qkv", "queries", "keys", "values", "attention", "o", "gate and up", "gated", "down"):
        assert 0 < errors[f"layer 0 {place}"] < 0.05
    # The sampled token's probabilities, recomputed site by site for one sequence: float32 sums of another
    # shape, then e4m3 logits, which such a last bit can move by a step for tokens on an edge.
    last = next(row for row in tables["autopsy"] if row["site"].startswith("probability"))
    assert last["train"] == pytest.approx(worst["pi_train"], rel=1e-4)
    # Each weight of a product is rounded: qkv, o, gate_up, down, head.
    assert {row["weight"] for row in tables["weights"]} == {
        "layer 0 qkv",
        "layer 0 o",
        "layer 0 gate_up",
        "layer 0 down",
        *({"lm_head"} if not config.tie_word_embeddings else ()),
    }
    equal = replace(subject, pair=EnginePair(infer, infer))
    with pytest.raises(ValueError, match="the same at every site"):
        explain(equal, lambda items, *_: items)
