"""The rules of T1-T4, written before the run, and what they say of its tables."""

from experiments.papers.tensor_cores import ADDER_SHARE, MATTERS, NOTHING, T1, T2, T3, T4
from simlab.studies import Evidence

Tables = dict[str, list[dict]]

WHOLE = ("h100-bf16", "h100-fp8")
ALIKE = (("a100-bf16", "h100-bf16"), ("b200-fp8", "h100-fp8"), ("h100-fp8", "ada-fp8"))
RULES = {claim.id: claim.trial("gpu_pairs").rule for claim in (T1, T2, T3, T4)}

ENDS = ("rms_low", "rms_high")
UNITS = {
    T1.id: "share of recorded outputs equal to the bit",
    T2.id: "share of the accumulator in the mean squared log rho of h100-bf16/h100-fp8",
    T3.id: "RMS log rho of another order, over that of h100-bf16/h100-fp8",
    T4.id: "RMS log rho of two GPUs of one format, over that of h100-bf16/h100-fp8",
}


def judge(tables: Tables) -> list[dict]:
    """Return a verdict per claim, policy and thing compared."""
    return [_vectors(tables["vectors"]), *_shares(tables["shares"]), *_orders(tables), *_cards(tables)]


def _vectors(vectors: list[dict]) -> dict:
    equal, outputs = (sum(row[name] for row in vectors) for name in ("equal", "outputs"))
    verdict = "reproduced" if equal == outputs else "opposite"
    return _row(T1.id, "recorded", "all vectors", verdict, f"{equal} of {outputs} outputs equal to the bit")


def _shares(shares: list[dict]) -> list[dict]:
    rows = []
    for row in shares:
        if row["factor"] == "accumulator":
            verdict = _decide(row["low"], row["high"], ADDER_SHARE, ADDER_SHARE, row["low"])
            measured = f"share {row['share']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
            rows.append(_row(T2.id, _policy(row), "accumulator in h100-bf16/h100-fp8", verdict, measured))
    return rows


def _orders(tables: Tables) -> list[dict]:
    reference = _reference(tables["pairs"])
    return [_against(T3.id, row, row["order"], reference[_policy(row)]) for row in tables["orders"]]


def _cards(tables: Tables) -> list[dict]:
    reference = _reference(tables["pairs"])
    chosen = [row for row in tables["pairs"] if (row["train"], row["infer"]) in ALIKE]
    return [_against(T4.id, row, f"{row['train']}/{row['infer']}", reference[_policy(row)]) for row in chosen]


def _reference(pairs: list[dict]) -> dict[str, float]:
    return {_policy(row): row["rms_log_rho"] for row in pairs if (row["train"], row["infer"]) == WHOLE}


def _against(claim: str, row: dict, what: str, reference: float) -> dict:
    ratio, low, high = (row[name] / reference for name in ("rms_log_rho", "rms_low", "rms_high"))
    verdict = _decide(low, high, MATTERS, NOTHING, 0.0)
    measured = f"{ratio:.3f} [{low:.3f}, {high:.3f}] of the FP8 mismatch"
    return _row(claim, _policy(row), what, verdict, measured)


def _decide(low: float, high: float, above: float, below: float, least: float) -> str:
    if low > above:
        return "reproduced"
    return "no effect" if high < below and least > -below else "inconclusive"


def _policy(row: dict) -> str:
    return f"{row['policy']} {row['seed']}"


def _row(claim: str, policy: str, what: str, verdict: str, measured: str) -> dict:
    return {
        "claim": claim,
        "policy": policy,
        "what": what,
        "verdict": verdict,
        "measured": f"{policy}, {what}: {measured}",
    }


def collect_evidence(tables: Tables) -> list[Evidence]:
    """Return evidence per claim: its verdict where all policies and things compared agree, else inconclusive.

    The number is the mean over them, the interval runs from the lowest of their intervals to the highest.
    """
    listed = [_summary(T1.id, tables, [row["equal"] / row["outputs"] for row in tables["vectors"]])]
    accumulators = [row for row in tables["shares"] if row["factor"] == "accumulator"]
    listed.append(
        _summary(T2.id, tables, *([row[name] for row in accumulators] for name in ("share", "low", "high")))
    )
    reference = _reference(tables["pairs"])
    gpu_rows = [row for row in tables["pairs"] if (row["train"], row["infer"]) in ALIKE]
    for claim, rows in ((T3.id, tables["orders"]), (T4.id, gpu_rows)):
        columns = ([row[name] / reference[_policy(row)] for row in rows] for name in ("rms_log_rho", *ENDS))
        listed.append(_summary(claim, tables, *columns))
    return listed


def _summary(claim: str, tables: Tables, effects: list, lows: list | None = None, highs: list | None = None):
    rows = [row for row in tables["verdicts"] if row["claim"] == claim]
    words = {row["verdict"] for row in rows}
    return Evidence(
        claim,
        words.pop() if len(words) == 1 else "inconclusive",
        sum(effects) / len(effects),
        min(lows or effects),
        max(highs or effects),
        unit=UNITS[claim],
        rule=RULES[claim],
        note="; ".join(f"{row['verdict']}: {row['measured']}" for row in rows),
    )
