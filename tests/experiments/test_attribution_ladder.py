"""The ladder on a policy whose scores are made up: shares sum to the whole, rungs end at it."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.measurements.attribution_ladder import ladder
from simlab.engines import find_pair
from simlab.models.config import MODELS
from simlab.studies.attribution import differing, group_sites

PROMPTS, ROWS, LENGTH = 3, 6, 4


class MadeUp:
    """Every site moves every token by an amount of its own, and all of them together by one more."""

    pair, model, prompts = find_pair("f32/fp8-s2-truncated-all"), MODELS["tiny-moe"], PROMPTS
    mask = np.arange(LENGTH) < np.array([4, 2, 3, 4, 1, 4])[:, None]
    sampled = SimpleNamespace(mask=mask, rewards=np.ones(ROWS))

    def __init__(self):
        sites = differing(self.pair.train, self.pair.infer, self.model)
        rng = np.random.default_rng(0)
        self.moves = {site: rng.normal(size=(ROWS, LENGTH)) for site in sites}

    def score(self, engine):
        changed = differing(self.pair.train, engine, self.model)
        together = 0.5 * (len(changed) == len(self.moves))
        return np.where(self.mask, -2.0 - sum(self.moves[site] for site in changed) - together, 0.0)


def test_shares_sum_to_one_and_rungs_climb_to_the_whole():
    policy = MadeUp()
    found = ladder(policy, iter)  # pyright: ignore
    groups = list(group_sites(policy.moves))
    assert [row["group"] for row in found["shares"]] == groups
    assert {"weights", "attention", "router", "head"} <= set(groups)
    assert sum(row["share"] for row in found["shares"]) == pytest.approx(1, abs=1e-12)
    assert all(row["low"] <= row["share"] <= row["high"] for row in found["shares"])
    whole = (sum(policy.moves.values()) + 0.5)[policy.mask]
    assert found["rungs"][0]["rms_log_rho"] == 0
    assert found["rungs"][-1]["rms_log_rho"] == pytest.approx(np.sqrt(np.mean(whole**2)))
    assert found["size"][0]["rms_log_rho"] == found["rungs"][-1]["rms_log_rho"]
    assert len(found["rungs"]) == len(groups) + 1
