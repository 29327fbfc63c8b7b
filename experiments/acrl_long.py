"""The claims of *acrl* about training over long responses, at the paper's discrepancy, by level of Y.

The arms of `acrl_dynamics` on chains of 64 terms, with doses at which d begins at about the paper's X: .013
to nearest, .031 truncated. What it says of A2, A3 and A4 with Y per sequence and per batch stands in their
notes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from experiments import acrl_dynamics
from experiments.campaign import ACRL, BF16, LENGTHENED, LEVELS, NONE, long
from experiments.dynamics_study.rules import with_arms
from experiments.dynamics_study.stages import compute, findings, rule_text
from experiments.dynamics_study.studies import watching
from simlab.claims import Finding
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

WATCHED = {long(BF16): ("under coarse FP8",)}
LEVELS_RULE = "A2, A3 and A4 also with Y per sequence and per batch; the verdict is that per group."
CLAIMS = tuple(with_arms(claim, {name: long(name) for name in LENGTHENED}) for claim in acrl_dynamics.CLAIMS)
OTHER_LEVELS = {
    level: tuple(with_arms(claim, {long(ACRL): arm}) for claim in CLAIMS if claim.id in ("A2", "A3", "A4"))
    for level, arm in LEVELS.items()
    if arm != long(ACRL)
}


def run(run: Run) -> None:
    scanned = [claim for claims in OTHER_LEVELS.values() for claim in claims]
    compute(run, (*CLAIMS, *scanned), smoke=(long(NONE), long(ACRL)), make=watching(WATCHED))


def decide(results: Results) -> list[Finding]:
    scans = {level: findings(results, claims) for level, claims in OTHER_LEVELS.items()}
    return [with_levels(each, scans) for each in findings(results, CLAIMS)]


def with_levels(finding: Finding, scans: Mapping[str, Sequence[Finding]]) -> Finding:
    """Return the finding with what the same claim says at other levels of Y in its note."""
    said = [
        f"Y per {level}: {other.verdict}, {other.effect:.3g} [{other.low:.3g}, {other.high:.3g}]"
        for level, found in scans.items()
        for other in found
        if other.claim == finding.claim
    ]
    return replace(finding, note="; ".join(filter(None, [finding.note, *said])))


EXPERIMENT = Experiment(
    name="acrl_long",
    question="Does ACRL hold the discrepancy over long responses, at the dose of its paper?",
    decision_rule=f"{rule_text(CLAIMS)} {LEVELS_RULE}",
    run=run,
    minutes=120.0,
    claims=tuple(claim.id for claim in CLAIMS),
    figures=("levels_of_y",),
    decide=decide,
)
