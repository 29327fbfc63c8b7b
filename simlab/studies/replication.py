"""Replication: test on fresh initial policies what those of the first interim analysis suggest.

The first interim analysis decides no claim, so the later policies are fresh. A criterion is listed if the
first policies alone would decide it, whatever all policies decide together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simlab.studies.board import Row, list_results
from simlab.studies.estimands import Views
from simlab.studies.registration import LOOKS
from simlab.studies.samples import Sample
from simlab.studies.verdicts import ALPHA, CriterionVerdict, criterion_verdict, measure_criterion


@dataclass(frozen=True)
class Replication:
    """Hold the samples of a row's primary criterion on the first policies and on the fresh ones."""

    row: Row
    first: Sample
    fresh: Sample

    @property
    def first_verdict(self) -> CriterionVerdict:
        """The verdict of the first policies alone."""
        return self._decide(self.first)

    @property
    def fresh_verdict(self) -> CriterionVerdict:
        """The verdict of the fresh policies alone."""
        return self._decide(self.fresh)

    def _decide(self, sample: Sample) -> CriterionVerdict:
        """Return the verdict by the 95% interval, which is not corrected for the family."""
        assert self.row.primary is not None
        criterion = self.row.primary.criterion
        return criterion_verdict(sample.interval(ALPHA), criterion.direction, criterion.margin)


def replications(rows: Sequence[Row]) -> list[Replication]:
    """Return those of `rows` that their first policies alone would decide and whose study went on."""
    stored = {experiment.name: Views(results) for experiment, results in list_results() if experiment.design}
    found = []
    for row in rows:
        if row.experiment in stored and row.primary is not None and row.primary.num_policies > LOOKS[0]:
            found += _split(row, stored[row.experiment])
    return [each for each in found if each.first_verdict != "inconclusive"]


def _split(row: Row, views: Views) -> list[Replication]:
    assert row.primary is not None
    criterion = row.primary.criterion
    policies = list(criterion.arms[0].initial_policies)
    parts = (policies[: LOOKS[0]], policies[LOOKS[0] :])
    first, fresh = (measure_criterion(views.of_policies(part), criterion) for part in parts)
    return [] if first is None or fresh is None else [Replication(row, first, fresh)]
