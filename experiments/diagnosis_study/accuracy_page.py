"""The tables of docs/diagnosis.md; `python -m experiments.diagnosis_study.accuracy_page` writes them."""

from pathlib import Path
from typing import Any

from experiments.diagnosis_roc import CONFIDENT
from simlab.core.results import Results

PAGE = Path(__file__).resolve().parents[2] / "docs" / "diagnosis.md"
RESULT = Path(__file__).resolve().parents[1] / "results" / "diagnosis_roc"
BEGIN, END = "<!-- generated: accuracy -->\n", "<!-- end -->"


def format_tables(results: Results) -> str:
    """Return the Markdown of summary, causes, calibration and real engines."""
    tables = {name: results.table(name).to_dict("records") for name in ("summary", "roc", "calibration")}
    parts = [
        _table(
            "logs that the fit never saw | number | named first | confidently right | confidently wrong",
            "{group} | {logs} | {named_first:.0%} | {confidently_right:.0%} | {confidently_wrong:.0%}",
            tables["summary"],
        ),
        _table(
            "cause | logs | area under the ROC curve | named first | named wrongly",
            "`{cause}` | {logs} | {auc:.3f} | {named_first:.0%} | {named_wrongly:.1%}",
            tables["roc"],
        ),
        _table(
            "probability of the first cause | logs | mean probability | right",
            "{low:g} to {high:.3g} | {logs} | {probability:.2f} | {right:.0%}",
            [row for row in tables["calibration"] if row["logs"]],
        ),
        _table(
            "logs of real engines | logs | named first | confidently wrong | `unknown`",
            "{name} | {logs} | {right:.0%} | {wrong:.0%} | {unknown:.0%}",
            _real_rows(results.table("real")),
        ),
    ]
    return "\n".join(parts)


def _real_rows(real: Any) -> list[dict[str, Any]]:
    rows = []
    for (model, fault), part in real.groupby(["model", "fault"], sort=True):
        right, unknown = part["named"] == part["cause"], part["named"] == "unknown"
        wrong = (part["probability"] >= CONFIDENT) & ~right & ~unknown
        rates = {"right": right.mean(), "wrong": wrong.mean(), "unknown": unknown.mean()}
        rows.append({"name": f"{model}: {fault}", "logs": len(part), **rates})
    return rows


def _table(header: str, line: str, rows: list[dict[str, Any]]) -> str:
    lines = [header, " | ".join(["---"] * (header.count("|") + 1)), *(line.format(**row) for row in rows)]
    return "".join(f"| {line} |\n" for line in lines)


def render_page(text: str, results: Results) -> str:
    """Return the page with its generated part replaced."""
    before, rest = text.split(BEGIN, 1)
    return before + BEGIN + format_tables(results) + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text(), Results(RESULT)))
