"""The tables of docs/diagnosis.md: accuracy, logs of vLLM, alarms of other programs, and live diagnosis."""

from collections.abc import Callable

from experiments.diagnosis_study.fitting import CONFIDENT
from scripts.tables import load_stored, table
from simlab.core.json_value import Json
from simlab.diagnosis.classifier import UNKNOWN
from simlab.studies.estimands import Frame


def accuracy() -> str:
    """Return the Markdown of summary, causes, calibration and real engines."""
    results = load_stored("diagnosis_roc")
    tables = {name: results.table(name).to_dict("records") for name in ("summary", "roc", "calibration")}
    parts = [
        _table(
            "logs that the fit never saw | number | named first | confidently right | confidently wrong",
            "{group} | {logs} | {named_first:.1%} | {confidently_right:.1%} | {confidently_wrong:.1%}",
            tables["summary"],
        ),
        _table(
            "cause | logs | area under the ROC curve | named first | named wrongly",
            "`{cause}` | {logs} | {auc:.3f} | {named_first:.0%} | {named_wrongly:.1%}",
            [row for row in tables["roc"] if row["logs"]],
        ),
        _table(
            "probability of the first cause | logs | mean probability | right",
            "{low:g} to {high:.3g} | {logs} | {probability:.2f} | {right:.0%}",
            [row for row in tables["calibration"] if row["logs"]],
        ),
        _table(
            "most frequent confusions: cause | named | logs",
            "`{cause}` | `{named}` | {logs}",
            _confusions(results.table("confusion")),
        ),
        _table(
            "logs of real engines | logs | named first | confidently wrong | `unknown`",
            "{name} | {logs} | {right:.0%} | {wrong:.0%} | {unknown:.0%}",
            _real_rows(results.table("real")),
        ),
    ]
    return "".join(parts)


def _confusions(confusion: Frame) -> list[dict[str, Json]]:
    wrong = confusion[confusion["cause"] != confusion["named"]]
    return wrong.sort_values(["logs", "cause"], ascending=[False, True]).head(10).to_dict("records")


def _real_rows(real: Frame) -> list[dict[str, Json]]:
    rows = []
    for (model, fault), part in real.groupby(["model", "fault"], sort=True):
        right, unknown = part["named"] == part["cause"], part["named"] == UNKNOWN
        wrong = (part["probability"] >= CONFIDENT) & ~right & ~unknown
        rates = {"right": right.mean(), "wrong": wrong.mean(), "unknown": unknown.mean()}
        rows.append({"name": f"{model}: {fault}", "logs": len(part), **rates})
    return rows


def real() -> str:
    """Return the Markdown of the logs of vLLM."""
    return _table(
        "log of vLLM | tokens | RMS log rho | cause | named, probability | probability of the cause",
        "{log} | {tokens} | {rms_log_rho:.3f} | `{cause}` | `{named}`, {probability:.0%} | "
        "{true_probability:.0%}",
        load_stored("diagnosis_real").table("logs").to_dict("records"),
    )


def peers() -> str:
    """Return the Markdown of the alarms by cause and program."""
    alarms: Frame = load_stored("diagnosis_peers").table("alarms")
    programs = list(dict.fromkeys(alarms["program"]))
    rows = []
    for (_, cause), part in alarms.groupby(["variant", "cause"], sort=False):
        row = {
            "cause": f"`{cause}`" if cause != "rounding" else "no fault",
            "variant": part["variant"].iloc[0],
        }
        for program in programs:
            logs = part[part["program"] == program]
            kinds = sorted({kind for text in logs["alarms"] for kind in text.split(", ") if kind})
            num_alarmed = int((logs["alarms"] != "").sum())
            row[program] = f"{num_alarmed} of {len(logs)}{': ' + ', '.join(kinds) if kinds else ''}"
        rows.append(row)
    faulty = alarms[alarms["cause"] != "rounding"]
    total = {"cause": "every fault", "variant": "alarms of any kind"}
    for program, logs in faulty.groupby("program"):
        total[str(program)] = f"{int((logs['alarms'] != '').sum())} of {len(logs)}"
    rows.append(total)
    line = "{cause} ({variant}) | " + " | ".join("{" + name + "}" for name in programs)
    return _table(f"cause | {' | '.join(programs)}", line, rows)


def live() -> str:
    """Return the Markdown of the cost of a live diagnosis."""
    return _table(
        "tokens of the step | tokens read | seconds of CPU | step time of which that is 1% (seconds)",
        "{batch_tokens:,} | {read_tokens:,} | {cpu_seconds:.2f} | {step_seconds_at_1_percent:.0f}",
        load_stored("bench_live").table("live").to_dict("records"),
    )


PARTS: dict[str, Callable[[], str]] = {
    "diagnosis_accuracy": accuracy,
    "diagnosis_real": real,
    "diagnosis_peers": peers,
    "diagnosis_live": live,
}
"""Generated part of the page -> its Markdown."""


def _table(head: str, line: str, rows: list[dict[str, Json]]) -> str:
    return table(head, (line.format(**row) for row in rows))
