"""The rules of T1-T4, written before the run, and what they say of its tables."""

from simlab.claims import Finding

Tables = dict[str, list[dict]]

MARGIN = 0.01
MATTERS, NOTHING = 0.1, 0.01
WHOLE = ("h100-bf16", "h100-fp8")
ALIKE = (("a100-bf16", "h100-bf16"), ("b200-fp8", "h100-fp8"), ("h100-fp8", "ada-fp8"))
RULES = {
    "T1": "the adders are right if every output of every recorded vector is equal to the bit",
    "T2": "the adder has a part in the FP8 mismatch of an H100 if the 95% interval of its Shapley share "
    f"of the mean squared log rho lies above {MARGIN}, none if it lies within +-{MARGIN}",
    "T3": "the order of the same products matters if its RMS log rho is, with its interval, above "
    f"{MATTERS} of that of h100-bf16/h100-fp8, and does nothing if below {NOTHING} of it",
    "T4": "two cards of one format differ if RMS log rho of the pair is, with its interval, above "
    f"{MATTERS} of that of h100-bf16/h100-fp8, and do not if below {NOTHING} of it",
}

ENDS = ("rms_low", "rms_high")
UNITS = {
    "T1": "share of recorded outputs equal to the bit",
    "T2": "share of the adder in the mean squared log rho of h100-bf16/h100-fp8",
    "T3": "RMS log rho of another order, over that of h100-bf16/h100-fp8",
    "T4": "RMS log rho of two cards of one format, over that of h100-bf16/h100-fp8",
}


def judge(tables: Tables) -> list[dict]:
    """Return a verdict per claim, policy and thing compared."""
    return [_vectors(tables["vectors"]), *_shares(tables["shares"]), *_orders(tables), *_cards(tables)]


def _vectors(vectors: list[dict]) -> dict:
    equal, outputs = (sum(row[name] for row in vectors) for name in ("equal", "outputs"))
    verdict = "reproduced" if equal == outputs else "opposite"
    return _row("T1", "recorded", "all vectors", verdict, f"{equal} of {outputs} outputs equal to the bit")


def _shares(shares: list[dict]) -> list[dict]:
    rows = []
    for row in shares:
        if row["factor"] == "adder":
            verdict = _decide(row["low"], row["high"], MARGIN, MARGIN, row["low"])
            measured = f"share {row['share']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
            rows.append(_row("T2", _policy(row), "adder in h100-bf16/h100-fp8", verdict, measured))
    return rows


def _orders(tables: Tables) -> list[dict]:
    whole = _whole(tables["pairs"])
    return [_against("T3", row, row["order"], whole[_policy(row)]) for row in tables["orders"]]


def _cards(tables: Tables) -> list[dict]:
    whole = _whole(tables["pairs"])
    chosen = [row for row in tables["pairs"] if (row["train"], row["infer"]) in ALIKE]
    return [_against("T4", row, f"{row['train']}/{row['infer']}", whole[_policy(row)]) for row in chosen]


def _whole(pairs: list[dict]) -> dict[str, float]:
    return {_policy(row): row["rms_log_rho"] for row in pairs if (row["train"], row["infer"]) == WHOLE}


def _against(claim: str, row: dict, what: str, whole: float) -> dict:
    ratio, low, high = (row[name] / whole for name in ("rms_log_rho", "rms_low", "rms_high"))
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


def findings(tables: Tables) -> list[Finding]:
    """One finding per claim: its verdict where all policies and things compared agree, else inconclusive.

    The number is the mean over them, the interval runs from the lowest of their intervals to the highest.
    """
    listed = [_summary("T1", tables, [row["equal"] / row["outputs"] for row in tables["vectors"]])]
    adders = [row for row in tables["shares"] if row["factor"] == "adder"]
    listed.append(
        _summary("T2", tables, *([row[name] for row in adders] for name in ("share", "low", "high")))
    )
    whole = _whole(tables["pairs"])
    cards = [row for row in tables["pairs"] if (row["train"], row["infer"]) in ALIKE]
    for claim, rows in (("T3", tables["orders"]), ("T4", cards)):
        columns = ([row[name] / whole[_policy(row)] for row in rows] for name in ("rms_log_rho", *ENDS))
        listed.append(_summary(claim, tables, *columns))
    return listed


def _summary(claim: str, tables: Tables, effects: list, lows: list | None = None, highs: list | None = None):
    rows = [row for row in tables["verdicts"] if row["claim"] == claim]
    words = {row["verdict"] for row in rows}
    return Finding(
        claim,
        words.pop() if len(words) == 1 else "inconclusive",
        sum(effects) / len(effects),
        min(lows or effects),
        max(highs or effects),
        unit=UNITS[claim],
        rule=RULES[claim],
        note="; ".join(f"{row['verdict']}: {row['measured']}" for row in rows),
    )
