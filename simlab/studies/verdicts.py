"""Verdicts of criteria and of claims: by the interval at the level of the family, against the margin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from simlab.core.json_value import Json
from simlab.core.results import Results
from simlab.studies.estimands import Estimand, Tables, Views
from simlab.studies.records import Criterion, Direction, Measured, Role, Trial
from simlab.studies.registration import planned_looks
from simlab.studies.samples import Ends, Sample, Side
from simlab.studies.sequential import Looks
from simlab.studies.statistics import holm, holm_levels

ALPHA = 0.05
CriterionVerdict = Literal["supported", "contradicted", "negligible", "inconclusive"]
VERDICTS = (
    "reproduced",
    "partly reproduced",
    "contradicted",
    "no effect",
    "inconclusive",
    "premise absent",
    "not run",
)
"""The verdicts of a claim in a regime."""


@dataclass(frozen=True)
class CriterionEvidence:
    """Evidence of one result on one criterion.

    `estimate` is None without a measured number; the interval is of level 1 - `alpha`. `p` and `adjusted_p`
    are of the hypothesis that the claimed effect does not exceed the margin; None of exact results.
    `adjusted_p` is corrected for looks and for the primary criteria of the paper.
    """

    criterion: Criterion
    verdict: CriterionVerdict
    estimate: float | None = None
    ci_low: float = -np.inf
    ci_high: float = np.inf
    alpha: float = ALPHA
    p: float | None = None
    adjusted_p: float | None = None
    num_policies: int = 0


@dataclass(frozen=True)
class Evidence:
    """Evidence of one result on one claim in one regime."""

    trial: Trial
    verdict: str
    criteria: tuple[CriterionEvidence, ...]
    note: str = ""
    manifest: Mapping[str, Json] = field(default_factory=dict)
    rms_log_rho: float | None = None

    @property
    def primary(self) -> CriterionEvidence:
        """The evidence on the criterion that decides."""
        return next(each for each in self.criteria if each.criterion.role == "primary")


def criterion_verdict(ends: Ends, direction: Direction, margin: float) -> CriterionVerdict:
    """Return the verdict of an interval: only an interval that lies beyond a margin, or inside, decides."""
    if direction == "at most":
        return "supported" if ends[1] <= margin else "contradicted" if ends[0] > margin else "inconclusive"
    low, high = ends if direction != "negative" else (-ends[1], -ends[0])
    if -margin <= low and high <= margin:
        return "supported" if direction == "zero" else "negligible"
    if direction == "zero":
        return "contradicted" if low > margin or high < -margin else "inconclusive"
    return "supported" if low > margin else "contradicted" if high < -margin else "inconclusive"


def p_supported(sample: Sample, criterion: Criterion) -> float:
    """Return the p-value against which the claimed effect holds: at most alpha where it is supported."""
    bounds = tested_bounds(criterion.direction, criterion.margin)
    return max(sample.p_beyond(bound, side) for bound, side in bounds)


def tested_bounds(direction: Direction, margin: float) -> tuple[tuple[float, Side], ...]:
    """Return the bounds that a supported effect exceeds (side 1) or falls below (-1)."""
    bounds: dict[Direction, tuple[tuple[float, Side], ...]] = {
        "positive": ((margin, 1),),
        "negative": ((-margin, -1),),
        "at most": ((margin, -1),),
        "zero": ((-margin, 1), (margin, -1)),
    }
    return bounds[direction]


def claim_verdict(criteria: Sequence[CriterionEvidence]) -> str:
    """Return the verdict of a claim: by its premises, then by its primary criterion, then by the others."""
    by_role: dict[Role, list[CriterionVerdict]] = {"secondary": [], "manipulation": []}
    for each in criteria:
        by_role.setdefault(each.criterion.role, []).append(each.verdict)
    premises = set(by_role["manipulation"])
    if premises & {"contradicted", "negligible"}:
        return "premise absent"
    if premises - {"supported"}:
        return "inconclusive"
    (first,) = by_role["primary"]
    if first == "supported":
        return "partly reproduced" if set(by_role["secondary"]) - {"supported"} else "reproduced"
    return "no effect" if first == "negligible" else first


def measure_trials(results: Results | Tables, trials: Sequence[Trial]) -> list[Measured]:
    """Return the samples of each trial whose primary criterion the stored runs hold."""
    views = Views(results)
    manifest = results.manifest if isinstance(results, Results) else {}
    measured = [
        measure(views, trial, manifest) for trial in trials if any(c.contrast for c in trial.criteria)
    ]
    return [each for each in measured if each.primary is not None]


def measure(views: Views, trial: Trial, manifest: Mapping[str, Json] | None = None) -> Measured:
    """Return the samples of the criteria of a trial."""
    samples = tuple(measure_criterion(views, criterion) for criterion in trial.criteria)
    conflict = family_conflict(views, trial.primary)
    mismatch = initial_mismatch(views, trial.regime.untreated)
    return Measured(trial, samples, trial.note, manifest or {}, conflict, mismatch)


def initial_mismatch(views: Views, arm: str) -> float | None:
    """Return the mean RMS log rho (nats) over the first tenth of the runs of an arm; None without one."""
    values = [view.early("rms_log_rho") for view in views.arms.get(arm, {}).values()]
    return sum(values) / len(values) if values and np.isfinite(values).all() else None


def measure_criterion(views: Views, criterion: Criterion) -> Sample | None:
    """Return the sample of a criterion; None if an arm or what it measures is missing."""
    if criterion.contrast is None or not criterion.arm_ids <= views.arms.keys():
        return None
    assert isinstance(criterion.estimand, Estimand)
    sample = criterion.contrast.measure(views, criterion.estimand)
    return None if sample is None or np.isnan(sample.estimate) else sample


def family_conflict(views: Views, criterion: Criterion) -> str:
    """Return how the sign of the effect differs between processor families; empty if it does not."""
    if "runs" not in views.results.table_names:
        return ""
    runs: Any = views.results.table("runs")
    if "processor_family" not in runs or runs["processor_family"].nunique() < 2:
        return ""
    estimates = {}
    for family, members in runs.groupby("processor_family"):
        sample = measure_criterion(views.of_policies(set(members["initial_policy"])), criterion)
        if sample is not None:
            estimates[str(family)] = sample.estimate
    signs = {np.sign(value) for value in estimates.values()}
    listed = ", ".join(f"{family} {value:.3g}" for family, value in estimates.items())
    return f"the sign differs between processor families: {listed}" if {1.0, -1.0} <= signs else ""


def decide_family(measured: Sequence[Measured]) -> list[Evidence]:
    """Return the evidence of all results about one paper, corrected for its sampled primary criteria.

    The primaries are tested by Holm's method; each interval is at the level at which its criterion was
    tested, and at the look that its study has reached. Other criteria have intervals of 95%.
    """
    tested = [each for each in measured if each.primary is not None and each.trial.primary.is_sampled]
    overall = [_overall_p(each) for each in tested]
    levels, adjusted = holm_levels(overall, ALPHA), holm(overall)
    known = {id(each): (float(a), float(p)) for each, a, p in zip(tested, levels, adjusted, strict=True)}
    return [_decide(each, *known.get(id(each), (ALPHA, None))) for each in measured]


def _looks(measured: Measured) -> Looks:
    """Return the looks at initial policies; a row of a stored table is read once."""
    return Looks(planned_looks(measured.manifest) if measured.trial.primary.contrast else ())


def _overall_p(measured: Measured) -> float:
    assert measured.primary is not None
    p = p_supported(measured.primary, measured.trial.primary)
    return _looks(measured).overall(p, measured.primary.num_policies)


def _decide(measured: Measured, alpha: float, adjusted_p: float | None) -> Evidence:
    pairs = zip(measured.trial.criteria, measured.samples, strict=True)
    criteria = tuple(
        _decide_criterion(criterion, sample, _looks(measured), alpha, adjusted_p)
        for criterion, sample in pairs
    )
    verdict, notes = claim_verdict(criteria), [measured.note]
    if verdict == "inconclusive" and (stopped := _stopped_early(measured)):
        notes.append(stopped)
    if measured.conflict:
        verdict = "inconclusive"
        notes.append(measured.conflict)
    note = "; ".join(part.rstrip(".") for part in notes if part)
    return Evidence(measured.trial, verdict, criteria, note, measured.manifest, measured.rms_log_rho)


def _stopped_early(measured: Measured) -> str:
    """Return why a study ended before its last interim analysis; empty if it did not."""
    looks, primary = _looks(measured), measured.primary
    assert primary is not None
    policies = primary.num_policies
    if not looks.deciding or policies >= looks.deciding[-1]:
        return ""
    made = f"{policies} of {looks.deciding[-1]} initial policies"
    config = measured.manifest.get("config")
    if isinstance(config, Mapping) and "stopped_in_block" in config:
        return f"interrupted after {made}; `simlab run --resume-from` continues it"
    if looks.decides(policies):
        return f"stopped at {made}, where the rule of that time had decided"
    if policies >= looks.policies[0]:
        return f"stopped for futility after {made}"
    return f"has {made}, and nothing is decided with fewer than {looks.deciding[0]}"


def _decide_criterion(
    criterion: Criterion, sample: Sample | None, looks: Looks, family_alpha: float, adjusted_p: float | None
) -> CriterionEvidence:
    if sample is None:
        return CriterionEvidence(criterion, "inconclusive")
    is_tested = criterion.role == "primary" and criterion.is_sampled
    alpha = looks.nominal(family_alpha, sample.num_policies) if is_tested else ALPHA
    low, high = sample.interval(alpha)
    verdict = criterion_verdict((low, high), criterion.direction, criterion.margin)
    if is_tested and not looks.decides(sample.num_policies):
        verdict = "inconclusive"
    has_p = low != high or criterion.is_sampled
    return CriterionEvidence(
        criterion,
        verdict,
        sample.estimate,
        low,
        high,
        alpha,
        p_supported(sample, criterion) if has_p else None,
        adjusted_p if is_tested else None,
        sample.num_policies,
    )
