"""Test T1 to T4 on the tables of `gpu_pairs`: verdicts per policy and factor, and over all of them."""

from experiments.papers.tensor_cores import ACCUMULATOR_SHARE, MATTERS, T1, T2, T3, T4
from simlab.studies import Measured
from simlab.studies.samples import Exact, Sample, StoredInterval
from simlab.studies.verdicts import criterion_verdict

Tables = dict[str, list[dict]]

RMS = ("rms_log_rho", "rms_low", "rms_high")
REFERENCE_PAIR = ("h100-bf16", "h100-fp8")
SAME_FORMAT_PAIRS = (("a100-bf16", "h100-bf16"), ("b200-fp8", "h100-fp8"), ("h100-fp8", "ada-fp8"))
TRIALS = {claim.id: claim.trial("gpu_pairs") for claim in (T1, T2, T3, T4)}
RULES = {claim: trial.text for claim, trial in TRIALS.items()}


def judge(tables: Tables) -> list[dict]:
    """Return a verdict per claim, policy and factor."""
    equal, outputs = _count_equal(tables)
    verdict = "supported" if equal == outputs else "contradicted"
    counted = f"{equal} of {outputs} outputs bitwise equal"
    rows = [_row(T1.id, "recorded", "all vectors", verdict, counted)]
    for row in _accumulators(tables):
        verdict = criterion_verdict((row["low"], row["high"]), "positive", ACCUMULATOR_SHARE)
        measured = f"share {row['share']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        rows.append(_row(T2.id, _policy(row), "accumulator in h100-bf16/h100-fp8", verdict, measured))
    reference = _reference(tables["pairs"])
    rows += [_against(T3.id, row, row["order"], reference[_policy(row)]) for row in tables["orders"]]
    for row in _same_format(tables):
        rows.append(_against(T4.id, row, f"{row['train']}/{row['infer']}", reference[_policy(row)]))
    return rows


def _count_equal(tables: Tables) -> tuple[int, int]:
    equal, outputs = (sum(row[name] for row in tables["vectors"]) for name in ("equal", "outputs"))
    return equal, outputs


def _accumulators(tables: Tables) -> list[dict]:
    return [row for row in tables["shares"] if row["factor"] == "accumulator"]


def _same_format(tables: Tables) -> list[dict]:
    return [row for row in tables["pairs"] if (row["train"], row["infer"]) in SAME_FORMAT_PAIRS]


def _reference(pairs: list[dict]) -> dict[str, float]:
    return {
        _policy(row): row["rms_log_rho"] for row in pairs if (row["train"], row["infer"]) == REFERENCE_PAIR
    }


def _against(claim: str, row: dict, what: str, reference: float) -> dict:
    ratio, low, high = (row[name] / reference for name in RMS)
    verdict = criterion_verdict((low, high), "positive", MATTERS)
    measured = f"{ratio:.3f} [{low:.3f}, {high:.3f}] of the FP8 mismatch"
    return _row(claim, _policy(row), what, verdict, measured)


def _policy(row: dict) -> str:
    return f"{row['policy']} {row['seed']}"


def _row(claim: str, policy: str, what: str, verdict: str, measured: str) -> dict:
    row = {"claim": claim, "policy": policy, "what": what, "verdict": verdict}
    return row | {"measured": f"{policy}, {what}: {measured}"}


def collect_evidence(tables: Tables) -> list[Measured]:
    """Return T1 to T4 over all policies and factors.

    The estimate is the mean over them. The interval extends from the lowest to the highest of their
    intervals, so it lies beyond a margin only if each of them does.
    """
    equal, outputs = _count_equal(tables)
    reference = _reference(tables["pairs"])
    samples: dict[str, Sample] = {
        T1.id: Exact(1 - equal / outputs),
        T2.id: _hull(*([row[name] for row in _accumulators(tables)] for name in ("share", "low", "high"))),
    }
    for claim, rows in ((T3.id, tables["orders"]), (T4.id, _same_format(tables))):
        columns = ([row[name] / reference[_policy(row)] for row in rows] for name in RMS)
        samples[claim] = _hull(*columns)
    notes = {claim: [TRIALS[claim].note] if TRIALS[claim].note else [] for claim in samples}
    for row in tables["verdicts"]:
        notes[row["claim"]].append(row["measured"])
    return [Measured(TRIALS[claim], (sample,), "; ".join(notes[claim])) for claim, sample in samples.items()]


def _hull(estimates: list[float], lows: list[float], highs: list[float]) -> StoredInterval:
    mean = sum(estimates) / len(estimates)
    return StoredInterval(mean, min(lows), max(highs))
