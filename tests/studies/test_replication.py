"""Replication: the policies of the first look and the others are all policies, each once."""

import pytest

from simlab.studies.board import board
from simlab.studies.contrasts import Contrast
from simlab.studies.registration import LOOKS
from simlab.studies.replication import replications

FOUND = replications(board().rows)


@pytest.mark.parametrize("found", FOUND, ids=lambda found: f"{found.row.id}-{found.row.experiment}")
def test_both_parts_make_the_estimate_of_the_board(found):
    total = found.row.primary
    assert found.first.num_policies <= LOOKS[0]
    assert found.first.num_policies + found.fresh.num_policies == total.num_policies
    if isinstance(total.criterion.contrast, Contrast):  # a mean over policies
        parts = found.first, found.fresh
        pooled = sum(part.num_policies * part.estimate for part in parts) / total.num_policies
        assert pooled == pytest.approx(total.estimate)


def test_only_decided_claims_of_longer_studies_are_replicated():
    assert FOUND
    for found in FOUND:
        assert found.row.verdict not in ("not run", "inconclusive", "premise absent")
        assert found.fresh.num_policies > 0
