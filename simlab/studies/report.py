"""The board as one page of HTML that needs nothing else: no network, no other file."""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import get_args

from simlab.core.experiment import Experiment
from simlab.core.manifest import Manifest
from simlab.core.paths import open_shop
from simlab.core.plugins import import_module
from simlab.studies.board import WORDS, Board, Row, board, counts, stored
from simlab.studies.loading import load_papers
from simlab.studies.records import Kind

LARGEST = 1_000_000
"""Bytes of a figure's file above which the other format is taken, or none."""


@dataclass(frozen=True)
class Drawn:
    """A figure of the catalog: what it shows, its experiment, its file as a data URI, and the paper's."""

    name: str
    experiment: str
    caption: str
    image: str | None
    paper: str = ""


def write_report(path: Path, results: Path | None = None, figures: Path | None = None) -> Board:
    """Write the page to `path` and return the board on it.

    `results` holds one folder per experiment and `figures` the drawn files; by default those that travel with
    the code. Equal inputs give equal bytes.
    """
    found = board(results)
    experiments = [each for each in stored(results) if each[0].claims]
    path.write_text(page(found, experiments, drawn(figures)), encoding="utf-8")
    return found


def page(found: Board, experiments: Sequence[tuple[Experiment, Manifest]], figures: Sequence[Drawn]) -> str:
    """Return the HTML of the board, of experiments with their manifests, and of their figures."""
    rows = found.rows
    *_, ours = papers = load_papers()
    present = {experiment.name for experiment, _ in experiments}
    shown = [figure for figure in figures if figure.image and figure.experiment in present]
    parts = resources.files("simlab.studies") / "page"
    commits = sorted({str(manifest["commit"])[:12] for _, manifest in experiments})
    return Template((parts / "page.html").read_text("utf-8")).substitute(
        style=(parts / "style.css").read_text("utf-8"),
        script=(parts / "script.js").read_text("utf-8"),
        problems=_lines(f'<p class="problem">{escape(problem)}</p>' for problem in found.problems),
        claims=f"{len(rows)} claims, {sum(row.paper != ours for row in rows)} of them of the papers",
        tiles=_lines(_tile(word, number) for word, number in counts(rows).items()),
        papers=_options(papers),
        verdicts=_options(WORDS),
        kinds=_options(get_args(Kind)),
        rows=_lines(_claim(row, _figures_of(row, shown)) for row in rows),
        forest=_lines(map(_strip, rows)),
        figures=_lines(_figure(figure, rows) for figure in shown),
        experiments=_lines(_experiment(*each, rows) for each in experiments),
        footer=f"Results of commits {', '.join(commits) or 'none'}. Made by <code>simlab report</code>.",
    )


def drawn(folder: Path | None = None) -> list[Drawn]:
    """Return the figures of the catalog, each with the smaller of its files in `folder`."""
    place = folder or open_shop() / "figures" / "out"
    open_shop()
    return [
        Drawn(name, source.experiment, source.caption, _data_uri(place, name), source.paper)
        for name, source in import_module("figures.catalog").FIGURES.items()
    ]


def _data_uri(folder: Path, name: str) -> str | None:
    kinds = {".svg": "image/svg+xml", ".png": "image/png"}
    files = [path for suffix in kinds if (path := folder / f"{name}{suffix}").is_file()]
    files = [path for path in files if path.stat().st_size <= LARGEST]
    if not files:
        return None
    smallest = min(files, key=lambda path: path.stat().st_size)
    return f"data:{kinds[smallest.suffix]};base64,{base64.b64encode(smallest.read_bytes()).decode()}"


def _lines(parts: Iterable[str]) -> str:
    return "".join(f"{part}\n" for part in parts if part)


def _options(names: Iterable[str]) -> str:
    return "".join(f"<option>{escape(name)}</option>" for name in names)


def _style(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _tile(word: str, number: int) -> str:
    return f'<li class="{_style(word)}"><b>{number}</b> {word}</li>'


def _figures_of(row: Row, shown: Sequence[Drawn]) -> list[Drawn]:
    """Those named after the claim's figures in the paper, or else all of the experiment that decides it."""
    named = import_module("figures.papers").find_cited(row.paper, row.where)
    mine = [figure for figure in shown if figure.name in named]
    return mine or [figure for figure in shown if figure.experiment == row.experiment]


def _claim(row: Row, figures: Sequence[Drawn]) -> str:
    facts = {
        "measured": escape(row.unit),
        "rule": escape(row.rule),
        "note": escape(row.note),
        "also": escape("; ".join(row.also)),
        "adjusted p": "" if row.adjusted_p is None else f"{row.adjusted_p:.2g}",
        "figures": ", ".join(f'<a href="#fig-{figure.name}">{escape(figure.name)}</a>' for figure in figures),
        "experiment": row.experiment
        and f'<a href="#exp-{row.experiment}">{row.experiment}</a>, commit '
        f"{row.commit}, {row.finished}, {row.minutes:g} min",
    }
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items() if value)
    body = f"{escape(row.statement)} <span class=small>({row.paper} {escape(row.where)})</span>"
    if listed:
        body = f"<details><summary>{body}</summary><dl>{listed}</dl></details>"
    return (
        f'<tr role="row" id="{row.id}" class="{_style(row.verdict)}" data-paper="{row.paper}" '
        f'data-verdict="{row.verdict}" data-kind="{row.kind}">'
        f'<td role="cell"><a href="#{row.id}">{row.id}</a></td>'
        f'<td role="cell"><span class="word">{row.verdict}</span></td>'
        f'<td role="cell">{body}</td><td role="cell">{_numbers(row)}</td></tr>'
    )


def _numbers(row: Row) -> str:
    if row.effect is None:
        return ""
    if row.low == row.high:
        return f"{row.effect:.3g} <span class=small>exact</span>"
    return f"{row.effect:.3g} <span class=small>[{row.low:.3g}, {row.high:.3g}]</span>"


def _strip(row: Row) -> str:
    """One line of the forest plot, scaled to the larger of its two bounds."""
    if row.effect is None or row.low is None or row.high is None or row.low == row.high:
        return ""
    reach = max(abs(row.low), abs(row.high))
    low, effect, high = (round(value / reach, 4) for value in (row.low, row.effect, row.high))
    label = f"{row.id}, {row.verdict}: {row.effect:.3g}, from {row.low:.3g} to {row.high:.3g}"
    return (
        f'<li class="{_style(row.verdict)}" data-claim="{row.id}"><a href="#{row.id}">{row.id}</a>'
        f'<svg viewBox="-1.1 0 2.2 1" preserveAspectRatio="none" role="img" aria-label="{label}">'
        '<line class="zero" x1="0" x2="0" y1="0" y2="1"/>'
        f'<line x1="{low}" x2="{high}" y1=".5" y2=".5"/>'
        f'<line class="dot" x1="{effect}" x2="{effect}" y1=".5" y2=".5"/></svg>'
        f'<span class="small">{_numbers(row)} {escape(row.unit)}</span></li>'
    )


def _figure(figure: Drawn, rows: Sequence[Row]) -> str:
    caption, paper = escape(figure.caption), f" ({figure.paper})" if figure.paper else ""
    return (
        f'<figure id="fig-{figure.name}"><img src="{figure.image}" alt="{caption}" decoding="async">'
        f'<figcaption>{caption}{paper}. <a href="#exp-{figure.experiment}">{figure.experiment}</a>'
        f"{_claims_of(figure.experiment, rows)}</figcaption></figure>"
    )


def _claims_of(experiment: str, rows: Sequence[Row]) -> str:
    decided = [row.id for row in rows if row.experiment == experiment]
    return "".join(f', <a href="#{claim}">{claim}</a>' for claim in decided)


def _experiment(experiment: Experiment, manifest: Manifest, rows: Sequence[Row]) -> str:
    facts = {key: manifest[key] for key in ("commit", "dirty", "finished", "seeds", "config", "tables")}
    facts |= {key: manifest[key] for key in ("timings", "device", "versions", "xla_flags")}
    minutes = manifest["timings"]["total"] / 60
    return (
        f'<details id="exp-{experiment.name}"><summary><b>{experiment.name}</b>: '
        f"{escape(experiment.question)} <span class=small>{minutes:.2g} min</span></summary>"
        f"<dl><dt>rule</dt><dd>{escape(experiment.decision_rule)}</dd>"
        f"<dt>decides</dt><dd>{_claims_of(experiment.name, rows)[2:] or 'nothing on the board'}</dd></dl>"
        f"<pre>{escape(_compact(facts))}</pre></details>"
    )


def _compact(facts: Mapping[str, object]) -> str:
    """Return JSON with lists of plain values on one line."""
    text = json.dumps(facts, indent=1)
    return re.sub(r"\[\s+[^][{}]*?\s+\]", lambda plain: " ".join(plain[0].split()), text)
