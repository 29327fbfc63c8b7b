"""Compare `simlab diagnose` with martingale, rldoctor and rlprobe on the same simulated logs.

Needs `python scripts/make_env.py peers`; the smoke version runs simlab alone. Programs that read averages get
the averages per step. martingale runs with and without digests of the engine's weights.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.diagnosis_study.faults import FAULTS, simulate_log
from experiments.diagnosis_study.fitting import CONFIDENT
from experiments.diagnosis_study.forward_passes import CONTEXTS, INFER_ENGINES, Pool, make_pool
from simlab.core.json_value import Json
from simlab.diagnosis import rank_causes
from simlab.diagnosis.log import TokenLog
from simlab.serving.open_engine import find_interpreter
from simlab.studies.experiment import Experiment, ExperimentContext

POLICY = "chain-16"
VARIANTS = (
    "no fault", "old weights", "frozen", "head rows", "every k-th row", "ages", "temperature", "top-p",
    "base 2", "shift", "jump", "prompt end", "end value", "other ids", "dropout 0.1", "identical",
    "frozen old", "double ratio", "wrong page",
)  # fmt: skip
SIZE, LOGS, STEPS, TOKENS = 0.7, 1, 40, 800
PROGRAM = Path(__file__).parent / "diagnosis_study" / "peer_programs.py"


def simulate_logs(pool: Pool, engines: tuple[str, ...]) -> dict[str, tuple[str, TokenLog]]:
    """Return the cause and the log, at most `TOKENS` tokens in `STEPS` steps, by name.

    `engines` are the inference engines to choose from.
    """
    logs_by_name = {}
    for number, variant in enumerate(VARIANTS):
        for repeat in range(LOGS * (3 if variant == "no fault" else 1)):
            rng = np.random.default_rng([77, number, repeat])
            log, _ = simulate_log(variant, pool, rng, SIZE, engines)
            rows = int(max(8, np.searchsorted(np.cumsum(log.lengths), TOKENS)))
            log = log.select_sequences(np.arange(log.num_sequences) < rows)
            logs_by_name[f"{number:02d}-{repeat}"] = (FAULTS[variant].cause, log)
    return logs_by_name


def as_rows(cause: str, log: TokenLog) -> dict[str, Json]:
    """Return a log as the programs read it; a log without steps is spread over `STEPS`."""
    count = log.num_sequences
    steps = log.step if len(np.unique(log.step)) > 1 else np.arange(count) * min(STEPS, count) // count
    age = np.zeros(count, int) if log.version is None else np.maximum(log.step - log.version, 0)
    ids = np.zeros(len(log.logp_train), int) if log.ids is None else log.ids
    rewards = np.arange(count) % 2 if log.rewards is None else log.rewards
    rows = [
        {
            "logp_train": log.logp_train[start : start + length].astype(float).tolist(),
            "logp_infer": log.logp_infer[start : start + length].astype(float).tolist(),
            "ids": ids[start : start + length].tolist(),
            "step": int(steps[row]) + 8,
            "version": int(steps[row] - age[row]) + 8,
            "reward": float(rewards[row]),
            "group": row // 8,
        }
        for row, (start, length) in enumerate(zip(log.starts, log.lengths, strict=True))
    ]
    return {"rows": rows, "old_weights": cause == "weight_sync"}


def run_peers(logs: dict[str, tuple[str, TokenLog]]) -> dict[str, dict[str, list[str]]]:
    """Return the alarms by log and program."""
    python = find_interpreter("peers")
    if not python.is_file():
        raise SystemExit(f"diagnosis_peers needs {python}: python scripts/make_env.py peers")
    with tempfile.TemporaryDirectory() as folder:
        for name, (cause, log) in logs.items():
            (Path(folder) / f"{name}.json").write_text(json.dumps(as_rows(cause, log)))
        done = subprocess.run([python, PROGRAM, folder], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def summarize(
    logs: dict[str, tuple[str, TokenLog]], alarms: Mapping[str, Mapping[str, list[str]]]
) -> list[dict[str, Json]]:
    """Return one row per log and program: the alarms, for simlab the causes at or above `CONFIDENT`."""
    rows = []
    for name, (cause, log) in logs.items():
        best = rank_causes(log)[0][0]
        is_sure = best.probability >= CONFIDENT
        row = {"log": name, "variant": VARIANTS[int(name[:2])], "cause": cause}
        own = [best.cause] if is_sure and best.cause != "rounding" else []
        for program, kinds in {"simlab": own, **alarms.get(name, {})}.items():
            is_named = program == "simlab" and best.cause == cause
            rows.append(row | {"program": program, "alarms": ", ".join(kinds), "named": is_named})
    return rows


def run(run: ExperimentContext) -> None:
    """Write the table `alarms`: one row per log and program."""
    run.configure(policy=POLICY, variants=VARIANTS, size=SIZE, logs=LOGS, steps=STEPS, tokens=TOKENS)
    engines, contexts = (INFER_ENGINES[:2], 100) if run.smoke else (INFER_ENGINES, CONTEXTS)
    with run.phase("logs"):
        logs = simulate_logs(make_pool(POLICY, 0, engines, contexts), engines)
    with run.phase("peers"):
        alarms = {} if run.smoke else run_peers(logs)
    run.table("alarms", summarize(logs, alarms))


EXPERIMENT = Experiment(
    name="diagnosis_peers",
    question="What do martingale, rldoctor and rlprobe report on the logs that `simlab diagnose` reads?",
    decision_rule="None: a table of alarms by cause, and of alarms without a fault.",
    run=run,
    minutes=4.0,
    kind="measurement",
)
