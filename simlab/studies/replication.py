"""Replication of verdicts: the primary criterion on the initial policies that the first look did not see.

The first look decides nothing, so for what it suggests, the policies that follow are fresh.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simlab.core.results import Results
from simlab.studies.board import Row, list_results
from simlab.studies.design import Design
from simlab.studies.estimands import Views
from simlab.studies.registration import LOOKS
from simlab.studies.samples import Sample
from simlab.studies.verdicts import ALPHA, CriterionVerdict, criterion_verdict, measure_criterion

DECIDED = ("reproduced", "partly reproduced", "contradicted", "no effect")


@dataclass(frozen=True)
class Replication:
    """The sample of a row's primary criterion on the policies of the first look, and on the fresh ones."""

    row: Row
    first: Sample
    fresh: Sample

    @property
    def verdict(self) -> CriterionVerdict:
        """The verdict of the fresh policies alone, by their 95% interval, not corrected for the family."""
        assert self.row.primary is not None
        criterion = self.row.primary.criterion
        return criterion_verdict(self.fresh.interval(ALPHA), criterion.direction, criterion.margin)

    @property
    def is_confirmed(self) -> bool:
        """Whether that is the verdict of all policies."""
        return self.row.primary is not None and self.verdict == self.row.primary.verdict


def replications(rows: Sequence[Row], folder: Path | None = None) -> list[Replication]:
    """Return the replication of each of `rows` that is decided and whose study went beyond the first look."""
    stored = {experiment.name: (experiment.design, results) for experiment, results in list_results(folder)}
    found = []
    for row in rows:
        design, results = stored.get(row.experiment, (None, None))
        primary = row.primary
        if row.verdict not in DECIDED or primary is None or primary.num_policies <= LOOKS[0]:
            continue
        if isinstance(design, Design) and results is not None:
            found += _split(row, design, results)
    return found


def _split(row: Row, design: Design, results: Results) -> list[Replication]:
    assert row.primary is not None
    criterion, views = row.primary.criterion, Views(results)
    policies = list(design.arms[criterion.arms[0]].initial_policies)
    parts = (policies[: LOOKS[0]], policies[LOOKS[0] :])
    first, fresh = (measure_criterion(views.of_policies(part), criterion) for part in parts)
    return [] if first is None or fresh is None else [Replication(row, first, fresh)]
