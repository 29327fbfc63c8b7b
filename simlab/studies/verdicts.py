"""Verdicts of trials from the tables of runs: per criterion, and of the claim."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from simlab.core.results import Results
from simlab.studies.estimands import Estimand, Frame, Tables, Views
from simlab.studies.records import Criterion, Evidence, Trial, arms_of
from simlab.studies.statistics import Interval, decide, paired_effect

EMPTY = pd.MultiIndex.from_arrays([[], []], names=["initial_policy", "seed"])


def contrast_by_run(views: Views, criterion: Criterion) -> Frame:
    """Return the contrast of a criterion by initial policy and seed, of the runs that all its arms have."""
    assert isinstance(criterion.estimand, Estimand)
    assert criterion.contrast is not None
    measured = {
        arm: {key: criterion.estimand(view) for key, view in views.arms.get(arm, {}).items()}
        for arm in criterion.arms
    }
    shared = sorted(set.intersection(*(set(values) for values in measured.values())))
    ordered = np.array([[values[key] for key in shared] for values in measured.values()])
    values = np.array(list(criterion.contrast.weights.values())) @ ordered
    index = pd.MultiIndex.from_tuples(shared, names=["initial_policy", "seed"]) if shared else EMPTY
    return pd.Series(values, index=index, dtype=float)


def effect(views: Views, criterion: Criterion, level: float = 0.95) -> Interval | None:
    """Return the effect over runs, paired by initial policy and seed; None with fewer than two policies."""
    values = contrast_by_run(views, criterion)
    values = values[np.isfinite(values)]
    policies = values.index.get_level_values("initial_policy")
    return paired_effect(values, 0.0, policies, level=level) if len(set(policies)) > 1 else None


def collect_evidence(results: Results | Tables, trials: Sequence[Trial]) -> list[Evidence]:
    """Return the evidence, at one look, of every trial whose arms all have what it measures."""
    views = Views(results)
    present = set(views.arms)
    judged = [judge(views, trial) for trial in trials if set(arms_of([trial])) <= present]
    return [each for each in judged if each is not None]


def judge(views: Views, trial: Trial, level: float = 0.95, where: str = "") -> Evidence | None:
    """Decide one trial; its effect is that of the deciding criterion, the others stand in the note."""
    tests, premise = trial.tests, trial.premise
    ordered = (*tests, *((premise,) if premise else ()))
    effects = [(criterion, effect(views, criterion, level)) for criterion in ordered]
    if any(interval is None for _, interval in effects):
        return None
    decided = [(c, i, decide(i, expected=c.direction, margin=c.margin)) for c, i in effects if i is not None]
    verdicts = [word for _, _, word in decided[: len(tests)]]
    verdict = combine(verdicts)
    notes = [
        f"({n}) {word}: {_spell_interval(i)}" for n, (_, i, word) in enumerate(decided[: len(verdicts)], 1)
    ]
    if premise is not None and decided[-1][2] != "reproduced":
        verdict = "inconclusive"
        notes.append(f"its premise does not show: {premise.text} {_spell_interval(decided[-1][1])}")
    which = verdicts.index(verdict) if verdict in verdicts else 0
    note = "; ".join(filter(None, [where, *notes, trial.note]))
    criterion, interval, _ = decided[which]
    return Evidence.of(
        trial.claim, verdict, interval, unit=criterion.text, rule=trial.text, note=note, level=level
    )


def _spell_interval(interval: Interval) -> str:
    return f"{interval.effect:.3g} [{interval.low:.3g}, {interval.high:.3g}]"


def combine(verdicts: Sequence[str]) -> str:
    """Return the verdict of a claim whose criteria have these verdicts."""
    for word in ("opposite", "no effect", "inconclusive"):
        if word in verdicts:
            return word
    return "reproduced"
