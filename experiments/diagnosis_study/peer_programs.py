"""Run martingale, rldoctor and rlprobe on logs: `python peer_programs.py DIRECTORY` in their environment.

Reads every `*.json` of the directory and prints one JSON object: by file, by program, the names of alarms.
A log has rows with `logp_train`, `logp_infer`, `ids`, `step`, `version`, `reward` and `group`, and
`old_weights`: whether the inference engine received other weights than the trainer sent, which martingale
can be told.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from martingale.diagnostics.replay import replay  # pyright: ignore[reportMissingImports]
from martingale.record import Recorder, SamplerConfig  # pyright: ignore[reportMissingImports]
from rl_doctor.diagnosis import diagnose  # pyright: ignore[reportMissingImports]
from rl_doctor.ingest.base import run_from_records  # pyright: ignore[reportMissingImports]
from rlprobe.doctor.engine import diagnose as diagnose_recording  # pyright: ignore[reportMissingImports]
from rlprobe.recorder.core import Recorder as ProbeRecorder  # pyright: ignore[reportMissingImports]

SAMPLER = SamplerConfig(
    temperature=1.0,
    top_p=1.0,
    logprobs_mode="raw_logprobs",
    dtype="bfloat16",
    engine="vllm",
    engine_version="0",
    logprobs_source="engine_sampling",
    temperature_applied=True,
)


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def run_martingale(log, with_digests):
    """Return the kinds of alarms; `with_digests` reports the weights that the engine received."""
    alarms = set()
    with tempfile.TemporaryDirectory() as folder:
        record = Recorder(folder)
        steps = sorted({row["step"] for row in log["rows"]} | {row["version"] for row in log["rows"]})
        revisions = {}
        for step in steps:
            received = None
            if with_digests:
                received = digest("old" if log["old_weights"] and step > steps[0] else f"weights {step}")
            revisions[step] = record.publish_revision(
                digest(f"weights {step}"), "0" * 64, SAMPLER, step=step, received_weights_digest=received
            )
        for number, row in enumerate(log["rows"]):
            made = revisions[row["version"]]
            with record.sequence(0, f"row-{number}", [1, 2, 3]) as sequence:
                for token, logp in zip(row["ids"], row["logp_infer"], strict=True):
                    sequence.token(made.digest, token, logp)
                sequence.reward(row["reward"])
            record.score(sequence.record.digest, revisions[row["step"]].digest, row["logp_train"])
        for step in replay(record.ledger):
            alarms |= {describe_alarm(alarm) for alarm in step.alarms}
    return sorted(alarms)


def describe_alarm(alarm):
    """Return the kind; an observed stale engine, from digests, apart from one inferred from log-probs."""
    is_observed = alarm.evidence.get("observed", False)
    return f"{alarm.kind} (observed)" if is_observed else alarm.kind


def averages(log):
    """Return one row of averages per step, as a trainer logs them, with the names of rlprobe."""
    rows = []
    for step in sorted({row["step"] for row in log["rows"]}):
        part = [row for row in log["rows"] if row["step"] == step]
        train, infer = (np.concatenate([row[name] for row in part]) for name in ("logp_train", "logp_infer"))
        rho = np.exp(np.clip(train - infer, -20, 20))
        reward = np.array([row["reward"] for row in part])
        rows.append(
            {
                "step": step,
                "reward_mean": float(reward.mean()),
                "reward_std": float(reward.std()),
                "entropy_mean": float(-train.mean()),
                "kl_mean": float(np.mean(rho - 1 - np.log(rho))),
                "clip_fraction": float(np.mean(np.abs(rho - 1) > 0.2)),
                "ratio_mean": float(rho.mean()),
                "ratio_p95": float(np.quantile(rho, 0.95)),
                "completion_len_mean": float(np.mean([len(row["ids"]) for row in part])),
            }
        )
    return rows


def run_rldoctor(log):
    names = {
        "reward_mean": "reward",
        "reward_std": "reward_std",
        "entropy_mean": "entropy",
        "kl_mean": "kl",
        "clip_fraction": "clip_ratio/region_mean",
        "completion_len_mean": "completions/mean_length",
    }
    records = [
        {"step": row["step"]} | {theirs: row[ours] for ours, theirs in names.items()} for row in averages(log)
    ]
    return sorted({finding.detector for finding in diagnose(run_from_records(records)).problems})


def run_rlprobe(log):
    with tempfile.TemporaryDirectory() as folder:
        with ProbeRecorder(Path(folder) / "run") as record:
            for row in averages(log):
                record.log_step(row.pop("step"), **row)
            for number, row in enumerate(log["rows"]):
                sample = {
                    "sample_id": str(number),
                    "group_id": str(row["group"]),
                    "completion_token_ids": row["ids"],
                    "completion_text": " ".join(map(str, row["ids"])),
                    "reward_total": row["reward"],
                    "completion_len": len(row["ids"]),
                }
                record.log_samples(row["step"], [sample], select=False)
        return sorted({finding.signature_id for finding in diagnose_recording(Path(folder) / "run")})


PROGRAMS = {
    "martingale": lambda log: run_martingale(log, False),
    "martingale with digests": lambda log: run_martingale(log, True),
    "rldoctor": run_rldoctor,
    "rlprobe": run_rlprobe,
}


def main(folder):
    """Print the alarms of every program on every log."""
    alarms = {}
    for path in sorted(Path(folder).glob("*.json")):
        log = json.loads(path.read_text())
        alarms[path.stem] = {name: program(log) for name, program in PROGRAMS.items()}
    print(json.dumps(alarms))


if __name__ == "__main__":
    main(sys.argv[1])
