"""Diagnose a path: read the log, compute the metrics, run every detector, write the tables."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from simlab.core.json_value import Json
from simlab.core.manifest import build_manifest, write_manifest
from simlab.core.results import write_table
from simlab.diagnosis.answer import Answer
from simlab.diagnosis.catalog import QUESTIONS, answer_questions
from simlab.diagnosis.classifier import UNKNOWN
from simlab.diagnosis.curve_files import find_curves
from simlab.diagnosis.input_checks import check_paths, check_usable, find_warnings
from simlab.diagnosis.log import Problem, TokenLog
from simlab.diagnosis.log_curves import SOURCE, WHAT_TO_LOG, answer_from_curves, read_curves
from simlab.diagnosis.log_metrics import measure
from simlab.diagnosis.log_reader import read_log
from simlab.diagnosis.panels import measure_panels
from simlab.diagnosis.ranking import RankedCause, list_causes, rank_causes
from simlab.metrics import PROBABILITY_EDGES, VERL_ALIASES, controlled_rms_log_rho

NAME = "diagnosis"
VERL_NAMES = {ours: verl for verl, ours in VERL_ALIASES.items()}


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a log.

    - `causes`: every cause, most probable first; `signatures`: numbers behind the probabilities.
    - `answers`: by detector.
    - `metrics`, `bins`: of the complete log, by the names of `simlab.metrics`.
    - `steps`: one row per step; `panels`: points of the figure.
    - `problems`: the rows and columns that were skipped.
    - `warnings`: limitations of the log.

    Curves of averages give `answers` and `steps`, and the cause `unknown`.
    """

    source: str
    files: list[str]
    num_sequences: int
    num_tokens: int
    causes: list[RankedCause]
    signatures: dict[str, float]
    answers: dict[str, Answer]
    metrics: dict[str, float]
    bins: list[dict[str, float]]
    steps: list[dict[str, float]]
    panels: list[dict[str, Json]]
    problems: list[Problem]
    warnings: list[str] = field(default_factory=list)

    def metric_rows(self) -> list[dict[str, Json]]:
        """Return one row per metric: name, verl's name, value."""
        return [
            {"metric": name, "verl": VERL_NAMES.get(name, ""), "value": value}
            for name, value in self.metrics.items()
        ]

    def cause_rows(self) -> list[dict[str, Json]]:
        """Return one row of plain values per cause."""
        return [cause.as_dict() for cause in self.causes]

    def answer_rows(self) -> list[dict[str, Json]]:
        """Return one row of plain values per answer."""
        return [
            {
                "detector": name,
                "question": answer.question,
                "verdict": answer.verdict,
                "sure": answer.confidence,
                "score": answer.score,
                "evidence": list(answer.evidence),
                "advice": answer.recommendation,
            }
            for name, answer in self.answers.items()
        ]


def diagnose(path: str | Path, rename: Mapping[str, str] | None = None) -> Diagnosis:
    """Diagnose the log in `path`, a file or a directory in a format of `read_log` or `read_curves`.

    Args:
        path: File or directory.
        rename: Maps names in the files to columns of the log.

    Raises:
        FileNotFoundError, ValueError: `path` has no usable log; the message has one reason.
    """
    path = Path(path)
    curves = find_curves(path)
    if curves and rename:
        raise ValueError(f"--rename takes token-level logs, got the curves of {curves[0].name}.")
    check_paths([path], rename or {})
    if curves:
        return _diagnose_curves(curves)
    read = read_log(path, rename)
    check_usable(read.log, path, read.problems)
    return diagnose_log(read.log, files=read.files, problems=read.problems)


def _diagnose_curves(files: list[Path]) -> Diagnosis:
    rows, problems = read_curves(files)
    answers = answer_from_curves(rows, QUESTIONS)
    causes = list_causes({UNKNOWN: 1.0}, {}, (f"{SOURCE}; {WHAT_TO_LOG}", *answers["weight_sync"].evidence))
    names = [file.name for file in files]
    return Diagnosis(SOURCE, names, 0, 0, causes, {}, answers, {}, [], rows, [], problems)


def diagnose_log(
    log: TokenLog, *, files: list[str] | None = None, problems: list[Problem] | None = None
) -> Diagnosis:
    """Diagnose a log in memory."""
    real = log.drop_masked()
    measured = measure(real)
    causes, signatures = rank_causes(real)
    return Diagnosis(
        source="token log",
        files=files or [],
        num_sequences=real.num_sequences,
        num_tokens=len(real.logp_train),
        causes=causes,
        signatures=signatures,
        answers=answer_questions(real, causes, signatures),
        metrics={name: float(value) for name, value in measured.items() if np.ndim(value) == 0},
        bins=_bins(measured),
        steps=_steps(real),
        panels=measure_panels(real),
        problems=problems or [],
        warnings=find_warnings(real),
    )


def _bins(measured: dict[str, Json]) -> list[dict[str, float]]:
    columns = {name: values for name, values in measured.items() if np.ndim(values) == 1}
    return [
        {"low": low, "high": high, **{name: float(values[row]) for name, values in columns.items()}}
        for row, (low, high) in enumerate(pairwise(PROBABILITY_EDGES))
        if columns
    ]


def _steps(log: TokenLog) -> list[dict[str, float]]:
    rows, histograms, profiles = [], [], []
    for part in _by_step(log):
        measured = measure(part)
        if not measured:
            continue
        row = {"step": int(part.step[0]), "response_length": float(part.lengths.mean())}
        if part.rewards is not None:
            row["reward"] = float(part.rewards.mean())
        rows.append(row | {name: float(value) for name, value in measured.items() if np.ndim(value) == 0})
        histograms.append(measured["tokens_by_pi_train"])
        profiles.append(np.nan_to_num(measured["rms_log_rho_by_pi_train"]))
    if rows:
        tokens = np.array(histograms, np.float32)
        rms = controlled_rms_log_rho(np.array(profiles, np.float32), tokens, tokens[0])  # pyright: ignore
        for row, value in zip(rows, np.asarray(rms), strict=True):
            row["controlled_rms_log_rho"] = float(value)
    return rows


def _by_step(log: TokenLog) -> Iterator[TokenLog]:
    """Yield the part of each step. Sorting once avoids a mask per step, which costs steps x tokens."""
    measured = TokenLog(log.lengths, log.logp_train, log.logp_infer, log.mask, log.step, rewards=log.rewards)
    order, tokens = (np.argsort(step, kind="stable") for step in (log.step, log.spread_to_tokens(log.step)))
    ordered = measured.take(tokens, order)
    ends = np.concatenate(([0], np.cumsum(ordered.lengths)))
    borders = np.flatnonzero(np.diff(ordered.step)) + 1
    for first, last in pairwise((0, *borders.tolist(), len(order))):
        yield ordered.take(slice(ends[first], ends[last]), slice(first, last))


def write_diagnosis(diagnosis: Diagnosis, folder: Path, path: str) -> Path:
    """Write one table per field of the diagnosis, and a manifest, to `folder`."""
    start = time.perf_counter()
    tables = {
        "causes": [row | {"evidence": "; ".join(row["evidence"])} for row in diagnosis.cause_rows()],
        "answers": [row | {"evidence": "; ".join(row["evidence"])} for row in diagnosis.answer_rows()],
        "signatures": [{"signature": name, "value": value} for name, value in diagnosis.signatures.items()],
        "metrics": diagnosis.metric_rows(),
        "bins": diagnosis.bins,
        "steps": diagnosis.steps,
        "panels": diagnosis.panels,
        "problems": [problem._asdict() for problem in diagnosis.problems],
        "warnings": [{"warning": warning} for warning in diagnosis.warnings],
    }
    tables = {name: rows for name, rows in tables.items() if rows}
    for name, rows in tables.items():
        write_table(folder, name, rows)
    config = {
        "path": path,
        "source": diagnosis.source,
        "files": diagnosis.files,
        "tokens": diagnosis.num_tokens,
    }
    counts = {name: len(rows) for name, rows in tables.items()}
    timings = {"write": time.perf_counter() - start}
    write_manifest(folder, build_manifest(NAME, config, [], timings, counts))
    return folder
