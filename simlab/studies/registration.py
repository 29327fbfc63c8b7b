"""Registration: the rule of a criterion is hashed into the manifest before its run.

`manifest["config"]["registered"]` holds `criteria`, the hash of each criterion by its id, `looks`, the
numbers of initial policies at which the result may be read, and `test`, the tests of that time, which all
criteria share. A hash covers what decides a verdict: claim, regime, role, estimand, contrast, printed value,
direction, margin and looks. It leaves out the reason of the margin, which may be worded better later, and how
the estimand is computed. Where an arm or a regime was renamed after a run, `criteria` was written anew, and
`criteria_before_renaming` keeps the hashes of the run.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from simlab.core.json_value import Json
from simlab.studies.records import Claim, Criterion, StoredRow, Trial, trials_of

Registered = Literal["before", "after", "exploratory"]
LOOKS = (8, 16, 24)
"""Numbers of initial policies at which a study is read: for futility alone, then to decide."""
TEST = "2026-11-27: Student's t, the same corrected for skewness, sign flips"
"""The tests that decide whether a mean lies beyond a bound. Change it with them, so that the board says which
results are older."""
AFTER = "rule changed after the run"
NEWER_TEST = "the test was changed after the run (docs/results.md)"


def criterion_id(trial: Trial, criterion: Criterion) -> str:
    """Return the id of a criterion: claim, experiment, regime and number, such as `L6 lr_dynamics/R 1`."""
    number = trial.criteria.index(criterion) + 1
    return f"{trial.claim} {trial.experiment}/{trial.regime.name} {number}"


def criterion_hash(trial: Trial, criterion: Criterion, looks: Sequence[int] = LOOKS) -> str:
    """Return the SHA-256 of the rule that a criterion states."""
    rule = {
        "claim": trial.claim,
        "experiment": trial.experiment,
        "regime": trial.regime.name,
        "role": criterion.role,
        "quantity": criterion.text,
        "unit": criterion.unit,
        "contrast": repr(criterion.contrast),
        "direction": criterion.direction,
        "margin": criterion.margin,
        "looks": list(looks),
    }
    if isinstance(criterion.estimand, StoredRow) and criterion.estimand.reference:
        rule["printed"] = criterion.estimand.reference
    return hash_rule(json.dumps(rule, sort_keys=True))


def hash_rule(text: str) -> str:
    """Return the SHA-256 of a rule in words, which a manifest records under the claim's id."""
    return hashlib.sha256(text.encode()).hexdigest()


def register(claims: Sequence[Claim], experiment: str) -> dict[str, Json]:
    """Return what the manifest of a run of `experiment` records about its rules."""
    trials = trials_of(claims, experiment)
    return {
        "looks": list(LOOKS),
        "test": TEST,
        "criteria": {
            criterion_id(trial, criterion): criterion_hash(trial, criterion)
            for trial in trials
            for criterion in trial.criteria
        },
    }


def find_registration(trial: Trial, manifest: Mapping[str, Json]) -> Registered:
    """Return whether the rule of `trial` was fixed before the run.

    A result that resumes from another one holds its runs, so that one must have registered the rule as well.
    """
    if trial.is_exploratory:
        return "exploratory"
    return "before" if _is_before(trial, manifest) else "after"


def planned_looks(manifest: Mapping[str, Json]) -> tuple[int, ...]:
    """Return the looks that were registered; empty if none were, and the result is read once."""
    return tuple(_read_registered(manifest).get("looks", ()))


def has_newer_test(manifest: Mapping[str, Json]) -> bool:
    """Return whether the tests were changed after the run."""
    return _read_registered(manifest).get("test") != TEST


def _read_registered(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    return manifest.get("config", {}).get("registered", {})


def _is_before(trial: Trial, manifest: Mapping[str, Any]) -> bool:
    known = _read_registered(manifest)
    looks, hashes = known.get("looks", ()), known.get("criteria", {})
    in_words = trial.rule_sha256 and known.get(trial.claim) == trial.rule_sha256
    if not in_words and any(
        hashes.get(criterion_id(trial, each)) != criterion_hash(trial, each, looks) for each in trial.criteria
    ):
        return False
    earlier = manifest.get("config", {}).get("resumed_from")
    return earlier is None or _is_before(trial, earlier)
