"""The scatter of *hacking* Fig. 3: padding is left out, and pairs stay pairs."""

import numpy as np
import pytest

from experiments.studies.token_probabilities import STORED, correlate, draw_tokens


def seen(runs=3, sequences=40, length=30):
    """Probabilities of random tokens: pi_infer is 1 - pi_train, and 9 where there is no token."""
    rng = np.random.default_rng(1)
    mask = rng.random((runs, sequences, length)) < 0.7
    train = rng.random(mask.shape)
    return {
        "mask": mask, "pi_train": np.where(mask, train, 9), "pi_infer": np.where(mask, 1 - train, 9)
    }  # fmt: skip


def test_correlation_leaves_padding_out():
    values = seen()
    assert correlate(values) == {"pcc": pytest.approx(-1), "tokens": values["mask"].sum()}


@pytest.mark.parametrize(("sequences", "stored"), [(40, STORED), (5, None)])
def test_drawn_tokens_are_tokens_of_their_run_and_none_twice(sequences, stored):
    values = seen(sequences=sequences)
    rows = draw_tokens(values)
    assert len(rows) == (values["mask"].sum() if stored is None else stored)
    assert len({(row["run"], row["pi_train"]) for row in rows}) == len(rows)
    for row in rows:
        assert row["pi_infer"] == pytest.approx(1 - row["pi_train"])
        assert row["pi_train"] in values["pi_train"][row["run"]][values["mask"][row["run"]]]
