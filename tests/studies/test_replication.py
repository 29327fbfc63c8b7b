"""Replication: the policies of the first interim analysis and the others are all policies, each once."""

from functools import partial

import pytest

from simlab.studies.board import board
from simlab.studies.contrasts import Contrast
from simlab.studies.registration import LOOKS
from simlab.studies.replication import replications
from simlab.studies.verdicts import criterion_verdict


@pytest.fixture(scope="module")
def replicated():
    return replications(board().rows)


def test_both_parts_make_the_estimate_of_the_board(replicated):
    for found in replicated:
        total = found.row.primary
        assert found.first.num_policies <= LOOKS[0]
        assert found.first.num_policies + found.fresh.num_policies == total.num_policies
        if isinstance(total.criterion.contrast, Contrast):  # a mean over policies
            parts = found.first, found.fresh
            pooled = sum(part.num_policies * part.estimate for part in parts) / total.num_policies
            assert pooled == pytest.approx(total.estimate), found.row


def test_a_criterion_enters_by_its_first_policies_alone(replicated):
    assert replicated
    for found in replicated:
        criterion = found.row.primary.criterion
        decide = partial(criterion_verdict, direction=criterion.direction, margin=criterion.margin)
        assert found.first_verdict == decide(found.first.interval(0.05)) != "inconclusive"
        assert found.fresh_verdict == decide(found.fresh.interval(0.05))
