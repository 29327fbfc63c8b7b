"""Measure the CPU time of a live diagnosis of a padded batch: with the token limit and with all tokens."""

import time
from functools import partial

import numpy as np

from experiments.benchmarks.diagnose_speed import LONGEST, SEQUENCES, STEPS
from experiments.benchmarks.timing import time_call
from simlab.diagnosis.injected_faults import generate_log
from simlab.integrations.live_diagnosis import LiveDiagnosis
from simlab.studies.experiment import Experiment, ExperimentContext

CALLS = 3


def time_live(copies: int, calls: int) -> list[dict[str, float]]:
    """Return the CPU seconds of a live diagnosis, with the token limit and with all tokens."""
    log = generate_log("no_fault", 0, 0, noise=0.5, sequences=SEQUENCES, length=LONGEST, steps=1)
    mask = np.arange(log.lengths.max()) < log.lengths[:, None]
    columns = [np.asarray(values) for values in (log.logp_train, log.logp_infer, log.ids)]
    padded = [np.zeros(mask.shape, values.dtype) for values in columns]
    for table, values in zip(padded, columns, strict=True):
        table[mask] = values
    train, infer, ids, mask = (np.tile(table, (copies, 1)) for table in (*padded, mask))
    tokens = int(mask.sum())
    rows = []
    for limit in (LiveDiagnosis().max_tokens, 10**9):
        live = LiveDiagnosis(max_tokens=limit)
        seconds = [
            time_call(partial(live.observe, step, train, infer, mask, ids), time.process_time)
            for step in range(calls + 1)
        ]
        cost = float(np.median(seconds[1:]))
        row = {"batch_tokens": tokens, "read_tokens": min(limit, tokens), "cpu_seconds": cost}
        rows.append(row | {"step_seconds_at_1_percent": 100 * cost})
    return rows


def run(run: ExperimentContext) -> None:
    """Write the table `live`: the median of the calls, per limit."""
    copies, calls = (1, 1) if run.smoke else (STEPS, CALLS)
    run.seeds([0])
    run.configure(sequences=SEQUENCES * copies, longest=LONGEST, calls=calls)
    live = time_live(copies, calls)
    run.table("live", live)
    for row in live:
        run.report(
            f"{row['read_tokens']:,} of {row['batch_tokens']:,} tokens: {row['cpu_seconds']:.2f} s of CPU, "
            f"1% of a step of {row['step_seconds_at_1_percent']:.0f} s"
        )


EXPERIMENT = Experiment(
    name="bench_live",
    question="What does a live diagnosis cost?",
    decision_rule="Cheap if it takes less than 1% of a training step at a million tokens per step; the table "
    "gives the step time from which that holds.",
    run=run,
    minutes=0.5,
)
