"""One page per claim at a permanent address, with its data beside it, and a table of all."""

import json
from collections.abc import Sequence

from simlab.studies.board import Board, Row, summary

HEAD = """# Claims

What five papers say about training-inference mismatch, what was run, and the verdict. Each claim has one
permanent address, `claims/ID/`, and its numbers as JSON. [The board](board.html) shows all on one interactive
page. Verdicts hold in the regime of their experiment; see [what the lab does not claim](../limits.md).

"""


def claim_pages(board: Board) -> dict[str, str]:
    """Return the files of the folder `claims` by name."""
    pages = {"index.md": HEAD + summary(board.rows) + "\n\n" + _table(board.rows)}
    for row in board.rows:
        pages[f"{row.id}.md"] = claim_page(row)
        pages[f"{row.id}.json"] = json.dumps(row.as_dict(), indent=2) + "\n"
    return pages


def _table(rows: Sequence[Row]) -> str:
    lines = ["| id | verdict | claim | estimate |", "|---|---|---|---|"]
    lines += [
        f"| [{row.id}]({row.id}.md) | {row.verdict} | {row.statement} | {_estimate(row)} |" for row in rows
    ]
    return "\n".join(lines) + "\n"


def claim_page(row: Row) -> str:
    """Return the page of one claim."""
    facts = {
        "verdict": f"**{row.verdict}**",
        "source": f"*{row.paper}* {row.where}",
        "kind": row.kind,
        "estimate": _estimate(row),
        "measured": row.unit,
        "rule": row.rule,
        "note": row.note,
        "other experiments": "; ".join(row.also),
        "experiment": f"`{row.experiment}`, {row.minutes} min" if row.experiment else "",
        "result": f"commit {row.commit}, {row.finished}" if row.experiment else "",
    }
    listed = "\n".join(f"| {name} | {_cell(value)} |" for name, value in facts.items() if value)
    again = f"\nMade again by `simlab run {row.experiment}`.\n" if row.experiment else ""
    return (
        f"# {row.id}: {row.statement}\n\n| | |\n|---|---|\n{listed}\n{again}\n"
        f"[Data of this page]({row.id}.json) · [on the board](board.html#{row.id}) · [all claims](index.md)\n"
    )


def _estimate(row: Row) -> str:
    if row.effect is None:
        return ""
    if row.low is None or row.high is None or row.low == row.high:
        return f"{row.effect:.3g} (exact)"
    return f"{row.effect:.3g} ({row.level:.1%} CI {row.low:.3g} to {row.high:.3g})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
