"""Measure how often the detectors of `simlab diagnose` are right on logs with injected faults."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from simlab.core.experiment import Experiment, Run
from simlab.diagnosis.catalog import DETECTORS
from simlab.diagnosis.injected_faults import KINDS, generate_random_log

FINDS: dict[str, tuple[str, ...]] = {
    "weight_sync": ("frozen", "partial", "scrambled"),
    "processing": ("temperature", "top_p", "top_k"),
    "staleness": ("stale",),
    "micro_batches": ("micro_batch",),
    "routing": ("router",),
}
"""The injected faults that each detector must find; other faults and logs without a fault are negatives."""


def scored(kinds: Iterable[str], seeds: Iterable[int]) -> list[dict[str, Any]]:
    """One row per log and detector that could tell: fault, size, score, how sure, whether it was right."""
    rows = []
    for kind in kinds:
        for seed in seeds:
            log, size = generate_random_log(kind, seed)
            for detector, faults in FINDS.items():
                answer = DETECTORS[detector](log)
                if answer.score is not None:
                    there = kind in faults
                    rows.append(
                        {
                            "detector": detector,
                            "fault": kind,
                            "size": size,
                            "seed": seed,
                            "there": there,
                            "score": answer.score,
                            "sure": answer.confidence,
                            "right": answer.has_fault == there,
                        }
                    )
    return rows


def roc(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per detector: area under the ROC curve, and the rates at its own threshold, score 1."""
    found = []
    for detector in FINDS:
        mine = [row for row in rows if row["detector"] == detector]
        faulty, sound = (
            np.array([row["score"] for row in mine if row["there"] is there]) for there in (True, False)
        )
        above = faulty[:, None] > sound[None]
        ties = faulty[:, None] == sound[None]
        found.append(
            {
                "detector": detector,
                "faulty": len(faulty),
                "sound": len(sound),
                "auc": float(np.mean(above + 0.5 * ties)),
                "found": float(np.mean(faulty >= 1)),
                "false_alarms": float(np.mean(sound >= 1)),
            }
        )
    return found


def calibration(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How often answers of each level of sureness were right."""
    levels = [(0.5, 0.7), (0.7, 0.9), (0.9, 1.0)]
    table = []
    for low, high in levels:
        right = [row["right"] for row in rows if low <= row["sure"] < high]
        table.append({"low": low, "high": high, "answers": len(right), "right": float(np.mean(right))})
    return table


def run(run: Run) -> None:
    """Write the tables `logs`, `roc` and `calibration`."""
    seeds = run.seeds(range(5000, 5002 if run.smoke else 5040))
    run.configure(logs=len(KINDS) * len(seeds))
    rows = []
    with run.phase("logs"):
        for kind in run.track(list(KINDS), "injected faults"):
            rows += scored([kind], seeds)
    run.table("logs", rows)
    run.table("roc", roc(rows))
    run.table("calibration", calibration(rows))


EXPERIMENT = Experiment(
    name="diagnosis_roc",
    question="How often are the answers of `simlab diagnose` right?",
    decision_rule="area under the ROC curve per detector on 400 logs, and rates at its own threshold",
    run=run,
    minutes=1.0,
    claims=(),
    figures=(),
)
