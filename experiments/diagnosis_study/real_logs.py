"""Logs of real engines from the stored result `real_pairs`, as they are and with faults of the loader."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simlab.diagnosis.log import LOWEST, TokenLog
from simlab.studies.estimands import Frame

NOISE = 1e-4
"""RMS log rho, nats, below which a pair of real engines counts as equal and has no mismatch to explain."""
BAD_WORKER = "llamacpp:q4_0"


def real_logs(folder: Path) -> Iterator[tuple[dict[str, str], TokenLog]]:
    """Yield a description (model, engines, fault, cause) and the log of each pair of different engines."""
    tokens: Frame = pd.read_parquet(folder / "tokens.parquet")
    samples: Frame = pd.read_parquet(folder / "samples.parquet")
    for (model, sampler, scorer), part in tokens.groupby(
        ["model", "sampling_engine", "scoring_engine"], sort=True
    ):
        log = _as_log(part, samples[(samples["model"] == model) & (samples["sampling_engine"] == sampler)])
        apart = log.logp_train.astype(np.float64) - log.logp_infer
        if np.sqrt(np.mean(apart**2)) < NOISE:
            continue
        pair = {"model": str(model), "engines": f"{scorer} / {sampler}"}
        yield pair | {"fault": "no fault", "cause": "rounding"}, log
        if "transformers:bfloat16" not in str(scorer):
            continue
        for fault, cause, changed in _with_faults(log):
            yield pair | {"fault": fault, "cause": cause}, changed
        if sampler != BAD_WORKER:
            chosen = (tokens["model"] == model) & (tokens["scoring_engine"] == scorer)
            worst = samples[(samples["model"] == model) & (samples["sampling_engine"] == BAD_WORKER)]
            bad = _as_log(tokens[chosen & (tokens["sampling_engine"] == BAD_WORKER)], worst)
            mixed = _every_fourth(log, bad)
            yield pair | {"fault": f"every fourth row by {BAD_WORKER}", "cause": "one_worker"}, mixed


def _as_log(tokens: Frame, samples: Frame) -> TokenLog:
    tokens = tokens.sort_values(["sequence", "position"], kind="stable")
    lengths = tokens.groupby("sequence", sort=True).size()
    responses = samples.set_index("sequence")["response"]
    ids = [np.asarray(responses[number])[:length] for number, length in lengths.items()]
    logp_train, logp_infer = (
        np.clip(tokens[name].to_numpy(np.float32), LOWEST, 0) for name in ("logp_train", "logp_infer")
    )
    return TokenLog(
        lengths=lengths.to_numpy(),
        logp_train=logp_train,
        logp_infer=logp_infer,
        mask=np.ones(len(tokens), bool),
        step=np.zeros(len(lengths), np.int64),
        ids=np.concatenate(ids),
    )


def _with_faults(log: TokenLog) -> Iterator[tuple[str, str, TokenLog]]:
    is_last = log.from_end == 0
    source = np.arange(len(is_last)) + ~is_last
    yield "shift by one", "token_shift", replace(log, logp_infer=log.logp_infer[source])
    for base in (2, 10):
        changed = np.maximum(log.logp_infer / np.log(base), LOWEST).astype(np.float32)
        yield f"base {base}", "log_base", replace(log, logp_infer=changed)
    value = np.where(is_last, np.float32(-9), log.logp_infer)
    yield "end value", "end_of_sequence", replace(log, logp_infer=value)


def _every_fourth(log: TokenLog, bad: TokenLog) -> TokenLog:
    count = min(log.num_sequences, bad.num_sequences)
    is_bad = np.arange(count) % 4 == 0
    columns: dict[str, Any] = {
        "lengths": np.where(is_bad, bad.lengths[:count], log.lengths[:count]),
        "step": np.zeros(count, np.int64),
    }
    for name in ("logp_train", "logp_infer", "ids", "mask"):
        good, other = (np.split(getattr(part, name), part.starts[1:]) for part in (log, bad))
        columns[name] = np.concatenate([(other if is_bad[n] else good)[n] for n in range(count)])
    return TokenLog(**columns)
