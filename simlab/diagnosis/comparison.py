"""Compare two logs: two runs, or two periods of one run; differences with intervals by sequence."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from simlab.core.json_value import Json
from simlab.diagnosis.input_checks import check_paths, check_usable
from simlab.diagnosis.log import TokenLog, log_rho
from simlab.diagnosis.log_reader import read_log
from simlab.diagnosis.ranking import rank_causes

RESAMPLES = 400
MIN_SEQUENCES = 4

# Quantity -> sums over the tokens of a sequence, and the quantity from total sums and the token count.
Sums = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
QUANTITIES: dict[str, tuple[Sums, Callable[[np.ndarray], np.ndarray]]] = {
    "rms_log_rho": (lambda x, _p, _q: x**2, np.sqrt),
    "mean_abs_log_rho": (lambda x, _p, _q: np.abs(x), lambda mean: mean),
    "mean_log_rho": (lambda x, _p, _q: x, lambda mean: mean),
    "k3_kl": (lambda x, _p, _q: np.expm1(x) - x, lambda mean: mean),
    "fraction_above_1_nat": (lambda x, _p, _q: np.abs(x) > 1, lambda mean: mean),
    "fraction_certain": (lambda _x, p, _q: p > np.log(0.9), lambda mean: mean),
    "mean_logp_infer": (lambda _x, p, _q: p, lambda mean: mean),
    "mean_logp_train": (lambda _x, _p, q: q, lambda mean: mean),
}


def compare_logs(before: Path, after: Path, rename: Mapping[str, str] | None = None) -> list[dict[str, Json]]:
    """Return one row per quantity and per cause: before, after, difference and its 95% interval.

    Raises:
        FileNotFoundError, ValueError: One of the logs is not usable.
    """
    check_paths([before, after], rename or {})
    logs = []
    for path in (before, after):
        read = read_log(path, rename)
        check_usable(read.log, path, read.problems)
        logs.append(read.log.drop_masked())
    return compare(*logs)


def compare(before: TokenLog, after: TokenLog) -> list[dict[str, Json]]:
    """Compare two logs without masked tokens.

    Resamples sequences, since their tokens are not independent.

    Raises:
        ValueError: A log has fewer than `MIN_SEQUENCES` sequences.
    """
    tables = [_sequence_sums(log) for log in (before, after)]
    rng = np.random.default_rng(0)
    estimates = [_quantities(table.sum(0)[None]) for table in tables]
    draws = [_resample(table, rng) for table in tables]
    compared: list[tuple[str, float, float, float | None, float | None, bool]] = []
    for column, name in enumerate((*QUANTITIES, "response_length")):
        apart = draws[1][:, column] - draws[0][:, column]
        low, high = np.quantile(apart, (0.025, 0.975))
        first, last = (float(values[0, column]) for values in estimates)
        compared.append((name, first, last, float(low), float(high), bool(low > 0 or high < 0)))
    causes = [{cause.cause: cause.probability for cause in rank_causes(log)[0]} for log in (before, after)]
    for name in sorted(causes[0], key=lambda name: -max(cause[name] for cause in causes)):
        first, last = (cause[name] for cause in causes)
        if max(first, last) >= 0.05:
            compared.append((f"probability of {name}", first, last, None, None, abs(first - last) > 0.5))
    return [
        {
            "quantity": name,
            "before": first,
            "after": last,
            "difference": last - first,
            "ci_low": low,
            "ci_high": high,
            "changed": "yes" if changed else "no",
        }
        for name, first, last, low, high, changed in compared
    ]


def _sequence_sums(log: TokenLog) -> np.ndarray:
    """Return the sums of each quantity, the tokens and 1 per sequence, [S, quantities + 2]."""
    log = log.select_sequences(log.lengths > 0)
    if log.num_sequences < MIN_SEQUENCES:
        raise ValueError(
            f"A log must have at least {MIN_SEQUENCES} sequences to compare, got {log.num_sequences}."
        )
    x = log_rho(log).astype(np.float64)
    columns = [
        np.add.reduceat(np.asarray(sums(x, log.logp_infer, log.logp_train), np.float64), log.starts)
        for sums, _ in QUANTITIES.values()
    ]
    return np.stack([*columns, log.lengths, np.ones(log.num_sequences)], axis=1)


def _resample(table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the quantities of `RESAMPLES` bootstrap samples, [RESAMPLES, quantities + 1]."""
    counts = rng.multinomial(len(table), np.full(len(table), 1 / len(table)), RESAMPLES)
    return _quantities(counts @ table)


def _quantities(totals: np.ndarray) -> np.ndarray:
    means = totals[:, :-2] / totals[:, -2:-1]
    shown = [transform(means[:, column]) for column, (_, transform) in enumerate(QUANTITIES.values())]
    return np.stack([*shown, totals[:, -2] / totals[:, -1]], axis=1)
