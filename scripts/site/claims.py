"""One page per claim at a permanent address, with its data beside it, and a table of all."""

import json
from collections.abc import Sequence

from scripts.tables import table
from simlab.studies.board import Board, Row, estimate_text, margin_text, power_text, summary
from simlab.studies.report import anchor

HEAD = """# Claims

What five papers say about training-inference mismatch, what was run, and the verdict, a row per regime. Each
claim has one permanent address, `claims/ID/`, and its numbers as JSON. [The board](board.html) shows all on
one interactive page. A verdict holds in its regime alone; see [what simlab does not claim](../limits.md).

"""


def claim_pages(board: Board) -> dict[str, str]:
    """Return the files of the folder `claims` by name."""
    pages = {"index.md": HEAD + summary(board.rows) + "\n" + _table(board.rows)}
    for id in dict.fromkeys(row.id for row in board.rows):
        rows = [row for row in board.rows if row.id == id]
        pages[f"{id}.md"] = claim_page(rows)
        pages[f"{id}.json"] = json.dumps([row.as_dict() for row in rows], indent=2) + "\n"
    return pages


def _table(rows: Sequence[Row]) -> str:
    return table(
        "id | verdict | claim | regime | estimate",
        (
            f"[{row.id}]({row.id}.md) | {row.verdict} | {row.claim.statement} | {row.regime_name} "
            f"| {_cell(estimate_text(row.primary))}"
            for row in rows
        ),
    )


def claim_page(rows: Sequence[Row]) -> str:
    """Return the page of one claim, with a section per regime."""
    claim = rows[0].claim
    sections = "\n".join(map(_section, rows))
    return (
        f"# {claim.id}: {claim.statement}\n\n"
        f"Source: *{claim.paper}* {claim.reference}. Kind: {claim.kind}.\n\n"
        f"{sections}\n[Data of this page]({claim.id}.json) · [on the board](board.html#{anchor(rows[0])}) · "
        "[all claims](index.md)\n"
    )


def _section(row: Row) -> str:
    facts = {
        "verdict": f"**{row.verdict}**",
        "registered": row.registered,
        "note": row.note,
        "power": power_text(row) and f"{power_text(row)}, at twice the margin",
        "experiment": f"`{row.experiment}`" if row.experiment else "",
        "result": f"commit {row.commit}, {row.finished}, {row.minutes} min"
        if row.minutes is not None
        else "",
    }
    listed = table(" | ", (f"{name} | {_cell(value)}" for name, value in facts.items() if value))
    again = f"\nMade again by `simlab run {row.experiment}`.\n" if row.evidence else ""
    return f"## {row.regime or 'No regime'}\n{listed}{_criteria(row)}{again}"


def _criteria(row: Row) -> str:
    rows = []
    for each in row.criteria:
        criterion = each.criterion
        cells = (
            criterion.role,
            criterion.text,
            criterion.direction,
            margin_text(criterion),
            estimate_text(each),
            "" if each.adjusted_p is None else f"{each.adjusted_p:.2g}",
            each.verdict if row.evidence else "",
        )
        rows.append(" | ".join(map(_cell, cells)))
    return table("criterion | quantity | expected | margin | estimate | adjusted p | verdict", rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
