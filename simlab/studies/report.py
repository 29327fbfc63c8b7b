"""The claims board as a page with interactive effects, and a folder of pictures next to it; no network."""

import base64
import gzip
import json
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import get_args

from PIL import Image

from simlab.core.manifest import Manifest
from simlab.core.paths import checkout_root
from simlab.core.plugins import import_from_checkout
from simlab.studies.board import (
    NUM_PAPERS,
    Board,
    Row,
    board,
    counts,
    estimate_text,
    list_results,
    margin_text,
    power_text,
)
from simlab.studies.experiment import Experiment
from simlab.studies.loading import load_papers
from simlab.studies.records import Kind
from simlab.studies.verdicts import VERDICTS


@dataclass(frozen=True)
class Drawn:
    """A figure of the catalog: what it shows, its experiment, its PNG file, and its name in a paper."""

    name: str
    experiment: str
    caption: str
    image: Path
    paper: str = ""


def write_report(path: Path, results: Path | None = None, figures: Path | None = None) -> Board:
    """Write the page to `path`, its pictures to the folder `NAME_files` next to it, and return the board.

    Args:
        path: file of the page.
        results: one folder per experiment; default the results shipped with the code.
        figures: PNG files of drawn figures; default those shipped with the code.
    """
    claims_board = board(results)
    experiments = [(each, stored.manifest) for each, stored in list_results(results) if each.claims]
    present = {experiment.name for experiment, _ in experiments}
    shown = [figure for figure in list_drawn(figures) if figure.experiment in present]
    pictures = path.with_name(f"{path.stem}_files")
    pictures.mkdir(parents=True, exist_ok=True)
    for figure in shown:
        shutil.copyfile(figure.image, pictures / figure.image.name)
    path.write_text(page(claims_board, experiments, shown, pictures.name), encoding="utf-8")
    return claims_board


def page(
    claims_board: Board,
    experiments: Sequence[tuple[Experiment, Manifest]],
    shown: Sequence[Drawn],
    pictures: str,
) -> str:
    """Return the HTML of the board, of experiments with manifests, and of figures in folder `pictures`."""
    rows = claims_board.rows
    papers = load_papers()
    ids = {row.id for row in rows}
    own = {row.id for row in rows if row.claim.paper not in papers[:NUM_PAPERS]}
    parts = resources.files("simlab.studies") / "page"
    commits = sorted({str(manifest["commit"])[:12] for _, manifest in experiments})
    return Template((parts / "page.html").read_text("utf-8")).substitute(
        style=(parts / "style.css").read_text("utf-8"),
        script=(parts / "script.js").read_text("utf-8"),
        problems=_lines(f'<p class="problem">{escape(problem)}</p>' for problem in claims_board.problems),
        claims=f"{len(ids)} claims, {len(ids - own)} of them of the papers, in {len(rows)} regimes",
        tiles=_lines(
            f'<li class="{_style(word)}"><b>{number}</b> {word}</li>' for word, number in counts(rows).items()
        ),
        papers=_options(papers),
        verdicts=_options(VERDICTS),
        kinds=_options(get_args(Kind)),
        regimes=_options(sorted({row.regime_name for row in rows})),
        rows=_lines(_claim(row, _figures_of(row, shown)) for row in rows),
        effects=_script_json([effect for row in rows if (effect := _effect(row))]),
        plotly=_plotly(),
        figures=_lines(_figure(figure, rows, pictures) for figure in shown),
        experiments=_lines(_experiment(*each, rows) for each in experiments),
        footer=f"Results of commits {', '.join(commits) or 'none'}. Made by <code>simlab report</code>.",
    )


def list_drawn(folder: Path | None = None) -> list[Drawn]:
    """Return the figures of the catalog that have a PNG file in `folder`."""
    folder = folder or checkout_root() / "figures" / "out"
    return [
        Drawn(name, source.experiment, source.caption, path, source.paper)
        for name, source in import_from_checkout("figures.catalog").FIGURES.items()
        if (path := folder / f"{name}.png").is_file()
    ]


@cache
def _plotly() -> str:
    """Return plotly's JavaScript, compressed and in base64; the browser unpacks it when it is needed."""
    code = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(code, mtime=0)).decode()


def _script_json(value: object) -> str:
    """Return JSON that may stand inside a script element."""
    return json.dumps(value).replace("</", "<\\/")


def _lines(parts: Iterable[str]) -> str:
    return "".join(f"{part}\n" for part in parts if part)


def _options(names: Iterable[str]) -> str:
    return "".join(f"<option>{escape(name)}</option>" for name in names)


def _style(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _figures_of(row: Row, shown: Sequence[Drawn]) -> list[Drawn]:
    """Return the figures of the claim, or else all figures of the experiment that decides the claim."""
    named = import_from_checkout("figures.catalog").figures_about(row.id)
    mine = [figure for figure in shown if figure.name in named]
    return mine or [figure for figure in shown if row.evidence and figure.experiment == row.experiment]


def anchor(row: Row) -> str:
    """Return the id of a row on the page: that of the claim, and the experiment after the first regime."""
    trials = row.claim.trials
    return row.id if not trials or row.trial == trials[0] else f"{row.id}-{row.experiment}"


def _claim(row: Row, figures: Sequence[Drawn]) -> str:
    ran = f", commit {row.commit}, {row.finished}, {row.minutes:g} min" if row.minutes is not None else ""
    facts = {
        "regime": escape(row.regime),
        "criteria": _criteria(row),
        "power": row.power is not None and f"{power_text(row)}, at twice the margin of the primary criterion",
        "note": escape(row.note),
        "rule set": row.registration,
        "figures": ", ".join(f'<a href="#fig-{figure.name}">{escape(figure.name)}</a>' for figure in figures),
        "experiment": f'<a href="#exp-{row.experiment}">{row.experiment}</a>{ran}'
        if row.evidence
        else row.experiment,
    }
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items() if value)
    claim, name = row.claim, anchor(row)
    body = f"{escape(claim.statement)} <span class=small>({claim.paper} {escape(claim.reference)})</span>"
    body = f"<details><summary>{body}</summary><dl>{listed}</dl></details>"
    return (
        f'<tr role="row" id="{name}" class="{_style(row.verdict)}" data-paper="{claim.paper}" '
        f'data-verdict="{row.verdict}" data-kind="{claim.kind}" data-regime="{escape(row.regime_name)}">'
        f'<td role="cell"><a href="#{name}">{row.id}</a></td>'
        f'<td role="cell"><span class="word">{row.verdict}</span></td>'
        f'<td role="cell">{body}</td><td role="cell">{escape(estimate_text(row.primary))}</td></tr>'
    )


def _criteria(row: Row) -> str:
    """Return the criteria as a list: role, quantity, margin, estimate and verdict."""
    items = []
    for each in row.criteria:
        criterion = each.criterion
        measured = estimate_text(each) or "not measured"
        adjusted = "" if each.adjusted_p is None else f", adjusted p {each.adjusted_p:.2g}"
        verdict = f": <b>{each.verdict}</b>" if row.evidence else ""
        items.append(
            f"<li>{criterion.role}{verdict}. {escape(criterion.text)}; expected {criterion.direction}, "
            f"margin {escape(margin_text(criterion))}; {escape(measured)}{adjusted}</li>"
        )
    return f"<ul>{''.join(items)}</ul>"


def _effect(row: Row) -> dict[str, object] | None:
    """Return what the forest plot shows of a claim, None without an interval; `reach` scales its axis."""
    evidence = row.primary
    if evidence is None or evidence.estimate is None or evidence.ci_low == evidence.ci_high:
        return None
    ends = [end for end in (evidence.ci_low, evidence.ci_high) if math.isfinite(end)] or [evidence.estimate]
    margin = evidence.criterion.margin
    reach = max(margin, *map(abs, ends))
    return {
        "id": anchor(row),
        "claim": row.id,
        "verdict": row.verdict,
        "style": _style(row.verdict),
        "statement": f"{row.claim.statement} ({row.regime_name})",
        "unit": evidence.criterion.text,
        "effect": evidence.estimate,
        "low": evidence.ci_low if math.isfinite(evidence.ci_low) else -reach,
        "high": evidence.ci_high if math.isfinite(evidence.ci_high) else reach,
        "margin": margin,
        "reach": reach,
    }


def _figure(figure: Drawn, rows: Sequence[Row], pictures: str) -> str:
    caption, paper = escape(figure.caption), f" ({figure.paper})" if figure.paper else ""
    with Image.open(figure.image) as image:
        width, height = image.size
    return (
        f'<figure id="fig-{figure.name}"><img src="{pictures}/{figure.image.name}" alt="{caption}" '
        f'width="{width}" height="{height}" loading="lazy" decoding="async">'
        f'<figcaption>{caption}{paper}. <a href="#exp-{figure.experiment}">{figure.experiment}</a>'
        f"{_claims_of(figure.experiment, rows)}</figcaption></figure>"
    )


def _claims_of(experiment: str, rows: Sequence[Row]) -> str:
    decided = [row for row in rows if row.experiment == experiment and row.evidence]
    return "".join(f', <a href="#{anchor(row)}">{row.id}</a>' for row in decided)


def _experiment(experiment: Experiment, manifest: Manifest, rows: Sequence[Row]) -> str:
    facts = {key: manifest[key] for key in ("commit", "dirty", "finished", "seeds", "config", "tables")}
    facts |= {key: manifest[key] for key in ("timings", "device", "versions", "xla_flags")}
    timings = manifest["timings"]
    # Runs from the result cache take no time again.
    minutes = max(timings["total"], timings.get("sweep computing", 0.0)) / 60
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
