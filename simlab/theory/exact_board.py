"""The board of claims that can be decided exactly: `simlab theory` prints it."""

from collections.abc import Iterable

from simlab.theory.checks import acrl_checks, cancel_checks, hacking_checks, lr_checks, vexact_checks
from simlab.theory.exact_claim import Claim, run


def claims() -> tuple[Claim, ...]:
    """Return all claims, paper by paper."""
    papers = (hacking_checks, lr_checks, vexact_checks, acrl_checks, cancel_checks)
    return tuple(claim for paper in papers for claim in paper.CLAIMS)


def board(chosen: Iterable[Claim] | None = None) -> list[dict]:
    """Compute the rows of `chosen` claims, by default all."""
    return [run(claim) for claim in (claims() if chosen is None else chosen)]
