"""The board: every claim, one row per regime, with the verdict that stored results give."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from simlab.core.json_value import Json
from simlab.core.manifest import MANIFEST_NAME, Manifest
from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.studies.experiment import Experiment
from simlab.studies.loading import load_claims, load_experiments, load_papers
from simlab.studies.power import ENOUGH_POWER, primary_family, sample_power
from simlab.studies.records import Claim, Criterion, Measured, Trial, arms_of
from simlab.studies.registration import AFTER, NEWER_TEST, find_registration, has_newer_test, planned_looks
from simlab.studies.verdicts import VERDICTS, CriterionEvidence, Evidence, decide_family

CORES = 2
"""Cores on which an experiment takes its `minutes`."""
# The five papers come first; claims from other sources follow.
NUM_PAPERS = 5
NOT_RUN = VERDICTS[-1]
Key = tuple[str, str, str]
"""Claim, experiment and regime."""


@dataclass(frozen=True)
class Row:
    """One claim in one regime.

    `evidence` is None where nothing was run; `core_minutes` is then the cost. `registered` is `before` or
    `after` the run, or `exploratory`; empty where nothing was run. `commit` ends with + if the tree was
    changed. `power` is that of the primary criterion at twice its margin, with the complete number of initial
    policies and the variance of the stored runs; None where no initial policies were sampled.
    """

    claim: Claim
    trial: Trial | None
    verdict: str
    evidence: Evidence | None = None
    registered: str = ""
    core_minutes: float | None = None
    experiment: str = ""
    commit: str = ""
    finished: str = ""
    minutes: float | None = None
    power: float | None = None

    @property
    def is_underpowered(self) -> bool:
        """True if the primary criterion has a power below 80%."""
        return self.power is not None and self.power < ENOUGH_POWER

    @property
    def is_tested_anew(self) -> bool:
        """True if the tests were changed after a run with registered criteria."""
        if self.evidence is None or self.trial is None or not self.trial.primary.contrast:
            return False
        return self.registered == "before" and has_newer_test(self.evidence.manifest)

    @property
    def is_trained(self) -> bool:
        """True if the primary criterion compares training runs."""
        return self.trial is not None and self.trial.primary.contrast is not None

    @property
    def registration(self) -> str:
        """When the rule was set, in words; empty where nothing was run."""
        if self.is_tested_anew:
            return "before the run, test changed after it"
        return {"before": "before the run", "after": AFTER}.get(self.registered, self.registered)

    @property
    def id(self) -> str:
        """The id of the claim."""
        return self.claim.id

    @property
    def regime(self) -> str:
        """The regime in which the verdict holds, on one line."""
        if self.trial is None:
            return ""
        return self.trial.regime.describe(self.evidence.rms_log_rho if self.evidence else None)

    @property
    def regime_name(self) -> str:
        """The short name of the regime."""
        return self.trial.regime.name if self.trial else ""

    @property
    def mismatch(self) -> str:
        """The RMS log rho (nats) at the start of the untreated runs; empty where it was not measured."""
        measured = self.evidence.rms_log_rho if self.evidence else None
        return "" if measured is None else f"{measured:.2g}"

    @property
    def verdicts(self) -> str:
        """The verdicts of the criteria by their role, on one line; empty where nothing was run."""
        by_role: dict[str, list[str]] = {}
        for each in self.criteria if self.evidence else ():
            by_role.setdefault(each.criterion.role, []).append(each.verdict)
        return "; ".join(f"{role}: {', '.join(found)}" for role, found in by_role.items())

    @property
    def criteria(self) -> tuple[CriterionEvidence, ...]:
        """The criteria with their evidence; without numbers where nothing was run."""
        if self.evidence is not None:
            return self.evidence.criteria
        rules = self.trial.criteria if self.trial else ()
        return tuple(CriterionEvidence(each, "inconclusive") for each in rules)

    @property
    def primary(self) -> CriterionEvidence | None:
        """The evidence on the primary criterion; None where nothing was run."""
        return self.evidence.primary if self.evidence else None

    @property
    def note(self) -> str:
        """Limits of the evidence, other results, and when the rule was set."""
        parts = [self.evidence.note if self.evidence else self.trial.note if self.trial else ""]
        if self.registered == "after":
            parts.append(AFTER)
        if self.is_tested_anew:
            parts.append(NEWER_TEST)
        if self.core_minutes is not None:
            parts.append(f"not run: about {self.core_minutes:.0f} core-minutes")
        return "; ".join(part.rstrip(".") for part in parts if part)

    def as_dict(self) -> dict[str, Json]:
        """Return the row as plain values; unbounded ends of intervals are None."""
        return {
            "id": self.id,
            "paper": self.claim.paper,
            "reference": self.claim.reference,
            "statement": self.claim.statement,
            "kind": self.claim.kind,
            "verdict": self.verdict,
            "regime": self.regime,
            "registered": self.registered or None,
            "experiment": self.experiment,
            "commit": self.commit,
            "note": self.note,
            "core_minutes": self.core_minutes,
            "power": self.power,
            "underpowered": self.is_underpowered,
            "criteria": [describe_criterion(each) for each in self.criteria],
        }


def describe_criterion(evidence: CriterionEvidence) -> dict[str, Json]:
    """Return a criterion and its evidence as plain values."""
    criterion = evidence.criterion
    return {
        "estimand": criterion.estimand.text,
        "contrast": criterion.reference,
        "unit": criterion.measured_in,
        "direction": criterion.direction,
        "margin": criterion.margin,
        "because": criterion.because,
        "primary": criterion.role == "primary",
        "role": criterion.role,
        "estimate": evidence.estimate,
        "ci_low": _finite(evidence.ci_low),
        "ci_high": _finite(evidence.ci_high),
        "confidence_level": 1 - evidence.alpha,
        "p": evidence.p,
        "adjusted_p": evidence.adjusted_p,
        "policies": evidence.num_policies,
        "verdict": evidence.verdict,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class Board:
    """All claims in the order of the catalog, and what is wrong with stored results, one line each."""

    rows: list[Row]
    problems: list[str]


def board(folder: Path | None = None) -> Board:
    """Return the board that the results in `folder` give.

    `folder` holds one folder per experiment; by default it is that of the results that travel with the code.
    A result that its experiment cannot read decides nothing and is among the problems.
    """
    measured, problems = measurements(folder)
    return Board(decide_board(measured), problems)


def decide_board(measured: Sequence[Measured]) -> list[Row]:
    """Return a row per claim and regime, decided paper by paper."""
    claims, experiments = load_claims(), load_experiments()
    evidence: dict[Key, Evidence] = {}
    powers: dict[Key, float | None] = {}
    for paper in load_papers():
        members = [each for each in measured if claims[each.trial.claim].paper == paper]
        registered = [each for each in members if not each.trial.is_exploratory]
        # Exploratory trials were added after the runs, so they do not change the levels of the others.
        for family in (members, registered):
            evidence |= {_key(each.trial): each for each in decide_family(family)}
        sizes = {kind: primary_family(list(claims.values()), paper, kind) for kind in (False, True)}
        powers |= {_key(each.trial): _power(each, sizes[each.trial.is_exploratory]) for each in members}
    rows: list[Row] = []
    for claim in claims.values():
        for trial in claim.trials:
            row = _row(claim, trial, evidence.get(_key(trial)), experiments)
            rows.append(replace(row, power=powers.get(_key(trial))))
        if not claim.trials:
            rows.append(Row(claim, None, NOT_RUN))
    return rows


def _power(measured: Measured, family: int) -> float | None:
    criterion, sample = measured.trial.primary, measured.primary
    if sample is None or criterion.contrast is None:
        return None
    looks, policies = planned_looks(measured.manifest), sample.num_policies
    if looks and policies < looks[0]:
        return 0.0  # so few policies decide nothing
    policies = max((policies, *looks[-1:]))
    found = sample_power(sample, criterion, policies, family)
    return None if found is None else found.power


def _key(trial: Trial) -> Key:
    return trial.claim, trial.experiment, trial.regime.name


def _row(claim: Claim, trial: Trial, evidence: Evidence | None, experiments: Mapping[str, Experiment]) -> Row:
    row = Row(claim, trial, NOT_RUN, experiment=trial.experiment)
    if evidence is None:
        return replace(row, core_minutes=_cost(trial, experiments.get(trial.experiment)))
    row = replace(row, verdict=evidence.verdict, evidence=evidence)
    if not evidence.manifest:
        return row
    manifest = cast(Manifest, evidence.manifest)
    return replace(
        row,
        registered=find_registration(trial, manifest),
        commit=(manifest["commit"] or "unknown")[:12] + ("+" if manifest["dirty"] else ""),
        finished=manifest["finished"],
        minutes=round(manifest["timings"]["total"] / 60, 2),
    )


def _cost(trial: Trial, experiment: Experiment | None) -> float | None:
    """Return the core-minutes of the arms of a trial: their part of those of its experiment."""
    if experiment is None:
        return None
    total = CORES * experiment.minutes
    if experiment.design is None or not (arms := arms_of([trial])):
        return total
    return total * len(arms) / max(len(experiment.design.arms), len(arms))


def measurements(folder: Path | None = None) -> tuple[list[Measured], list[str]]:
    """Return what every stored result measured, in the order of `EXPERIMENTS`, and problems."""
    measured: list[Measured] = []
    problems = []
    for experiment, results in list_results(folder):
        try:
            measured += measure_result(experiment, results)
        except ValueError as error:
            problems.append(f"{error}; run it again: simlab run {experiment.name}")
    return measured, problems


def measure_result(experiment: Experiment, results: Results) -> list[Measured]:
    """Return what a finished run of `experiment` measured.

    Raises `ValueError` if it cannot read its tables or measures an unknown claim.
    """
    try:
        collect = experiment.collect_evidence
        measured = collect(results) if collect else ()
    except (KeyError, FileNotFoundError, IndexError) as error:
        raise ValueError(f"{experiment.name} cannot decide from its tables: {error!r}") from error
    claims = load_claims()
    if unknown := [each.trial.claim for each in measured if each.trial.claim not in claims]:
        raise ValueError(f"{experiment.name} decides {', '.join(unknown)}, not a claim of the board")
    manifest: Any = results.manifest
    return [replace(each, manifest=manifest) for each in measured]


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of rows by verdict, in the order of `VERDICTS`."""
    numbers = Counter(row.verdict for row in rows)
    return {word: numbers[word] for word in VERDICTS}


def summary(rows: Sequence[Row]) -> str:
    """Return the counts as the README shows them: a Markdown table, papers by verdict.

    Exploratory rows are left out.
    """
    rows = [row for row in rows if row.registered != "exploratory"]
    lines = ["| | " + " | ".join(VERDICTS) + " |", "|---|" + "---:|" * len(VERDICTS)]
    by_paper = {name: [row for row in rows if row.claim.paper == name] for name in load_papers()}
    papers = list(by_paper)[:NUM_PAPERS]
    five = [row for paper in papers for row in by_paper[paper]]
    groups = {paper: by_paper[paper] for paper in papers}
    groups["the five papers"] = five
    groups["of these, from training runs"] = [row for row in five if row.is_trained]
    groups["of these, without training"] = [row for row in five if not row.is_trained]
    for label, members in (groups | by_paper).items():
        lines.append(f"| {label} | " + " | ".join(map(str, counts(members).values())) + " |")
    return "\n".join(lines)


def find_deciding_experiment(claim: str, rows: Sequence[Row]) -> Experiment:
    """Return the experiment behind a claim: the first whose result decides it, else the first named.

    Raises `ValueError` where no experiment does.
    """
    named = [row for row in rows if row.id == claim and row.experiment]
    for row in sorted(named, key=lambda row: row.evidence is None):
        return load_experiments()[row.experiment]
    raise ValueError(f"no experiment decides {claim} yet: {load_claims()[claim].statement}")


def power_text(row: Row) -> str:
    """Return the power in percent, with the label `underpowered` below 80%; empty without one."""
    if row.power is None:
        return ""
    return f"{row.power:.0%}{', underpowered' if row.is_underpowered else ''}"


def margin_text(criterion: Criterion) -> str:
    """Return the margin with its unit and reason."""
    unit = f" {criterion.unit}" if criterion.unit else ""
    return f"{criterion.margin:.3g}{unit} ({criterion.because})"


def estimate_text(evidence: CriterionEvidence | None) -> str:
    """Return estimate and interval on one line; empty without an estimate."""
    if evidence is None or evidence.estimate is None:
        return ""
    if evidence.ci_low == evidence.ci_high:
        return f"{evidence.estimate:.3g} (exact)"
    size = f", n = {evidence.num_policies}" if evidence.num_policies else ""
    ends = f"{evidence.ci_low:.3g} to {evidence.ci_high:.3g}"
    if (evidence.ci_low, evidence.ci_high) == (-math.inf, math.inf):
        ends = "unbounded"
    return f"{evidence.estimate:.3g} ({100 * (1 - evidence.alpha):.4g}% CI {ends}{size})"


def list_results(folder: Path | None = None) -> list[tuple[Experiment, Results]]:
    """Return every experiment with stored results, those shipped with the code by default."""
    stored = []
    for name, experiment in load_experiments().items():
        directory = committed_results(name) if folder is None else folder / name
        if (directory / MANIFEST_NAME).is_file():
            stored.append((experiment, Results(directory)))
    return stored
