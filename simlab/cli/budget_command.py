"""`simlab budget`: the effective sample size that a mismatch per token leaves over a response."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from simlab.cli.output import Json, one_clear_error, show

EPILOG = (
    "Example: `simlab budget --format e4m3fn --length 8192`, or with a measured mismatch: "
    "`simlab budget --rho-std 0.02 --length 8192`"
)

MEANINGS = {
    "length": "tokens of a response",
    "ess": "effective sample size of exact sequence weights, fraction of the samples: (1 + std^2)^-length",
    "length_at_half_ess": "tokens at which half of the samples remain",
    "abs_seq_log_ratio": "mean of |sum of log rho| over a response, nats",
    "masked_above_2": "fraction of responses whose product of rho exceeds 2: sequence MIS drops them",
    "median_sequence_ratio": "median over responses of the product of rho",
    "rho_std_for_half_ess": "std of rho per token that would leave half of the samples at this length",
}
LOGITS = {"rounding": "nearest_even", "vocabulary": 2048, "logit_std": 1.5}
"""Defaults of the synthetic logits that --format rounds."""

Length = Annotated[int, typer.Option(help="Response length in tokens.")]
FormatName = Annotated[
    str | None, typer.Option("--format", help="Number format of the logits; see `simlab list formats`.")
]
RhoStd = Annotated[
    float | None, typer.Option(help="Measured std of the IS ratio rho per token, instead of a format.")
]
RoundingName = Annotated[
    str | None, typer.Option(help="Rounding of the logits to the format (default nearest_even).")
]
Vocabulary = Annotated[
    int | None, typer.Option(min=2, help="Tokens of the synthetic vocabulary (default 2048).")
]
LogitStd = Annotated[
    float | None, typer.Option(help="Standard deviation of the synthetic logits (default 1.5).")
]


def budget(
    length: Length = 8192,
    fmt: FormatName = None,
    rho_std: RhoStd = None,
    rounding: RoundingName = None,
    vocabulary: Vocabulary = None,
    logit_std: LogitStd = None,
    json: Json = False,
) -> None:
    """Translate a mismatch per token into the effective sample size of complete sequences.

    --format rounds Gaussian logits and nothing else. A real engine rounds at every layer, so its mismatch
    is larger. Pass a measured std of rho with --rho-std.
    """
    from simlab.theory.budget import budget as compute

    with one_clear_error():
        if (fmt is None) == (rho_std is None):
            raise ValueError("--format or --rho-std must be given, and not both.")
        options = {"rounding": rounding, "vocabulary": vocabulary, "logit_std": logit_std}
        chosen = {name: value for name, value in options.items() if value is not None}
        if rho_std is None:
            rho_std, source = _round_logits(fmt or "", chosen)
        elif chosen:
            raise ValueError(f"--{next(iter(chosen)).replace('_', '-')} needs --format, got --rho-std.")
        else:
            source = "given"
        numbers = asdict(compute(rho_std, length))
    if json:
        show([numbers], True)
        return
    meanings = MEANINGS | {"rho_std": f"std of the IS ratio of one token; {source}"}
    rows = [
        {"quantity": key.replace("_", " "), "value": value, "meaning": meanings[key]}
        for key, value in numbers.items()
    ]
    show(rows, False, "Budget of independent tokens: 1 + std(rho)^2 multiplies over a response")


def _round_logits(fmt: str, chosen: dict[str, Any]) -> tuple[float, str]:
    """Return the std of rho of synthetic logits rounded to a format, and how it was measured."""
    from simlab.theory.rounding_error import gaussian_rho_std

    logits: dict[str, Any] = LOGITS | chosen
    source = (
        "measured: softmax of {vocabulary} Gaussian logits (std {logit_std:g}) rounded to {fmt} "
        "({rounding}) against the exact softmax"
    ).format(fmt=fmt, **logits)
    return gaussian_rho_std(fmt, *logits.values()), source
