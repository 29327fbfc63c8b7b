"""The lines above a figure: the finding on the board, what is drawn, and the setting behind it."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from figures.series import read_labels
from figures.style import MUTED
from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.studies.arms import Arm
from simlab.studies.board import Row, board, estimate_text
from simlab.studies.registration import AFTER
from simlab.studies.verdicts import ALPHA, CriterionEvidence


class Letters(NamedTuple):
    """Style of a line of text."""

    fontsize: float
    fontweight: str = "normal"
    color: str = "black"


BOLD, PLAIN, SMALL = Letters(8.5, "bold"), Letters(7.5), Letters(6.5, color=MUTED)
BOLD_LETTER, LETTER = 0.6, 0.52  # mean width of a letter in font sizes
LINE = 1.3  # height of a line in font sizes
LATE_RULES = {"exploratory": ", exploratory", "after": f", {AFTER}"}
BITS = ("truncation", "round to nearest", "stochastic rounding")
"""Kinds of noise whose level is a number of mantissa bits."""

CORES = "{device[cpu_cores]} CPU cores"
JIT = "static: format known at compilation; traced: format is an input"
SETTINGS = {
    "formats": "n = {count:,} random values per format, 2^{lowest_exponent} to 2^{highest_exponent}",
    "softmax": "Softmax of Gaussian logits (std {logit_std}, vocabulary {vocabulary:,} unless stated), "
    "rounded as named; {tokens:,} sampled tokens per seed; n = 2 to 50 seeds",
    "theory": "Exact sums without sampling error; n = {rows} checks",
    "theory_corrections": "Exact sums over vocabulary {vocabulary}, groups of {group_size}; n = {n} seeds",
    "group_corrections": "Exact sums over vocabulary {vocabulary}, {length} tokens, groups of {group_size}; "
    "n = {n} seeds",
    "theory_survival": "Softmax of Gaussian logits (std {logit_std}, vocabulary {vocabulary:,}); "
    "rounded logits, or noise of std {noise_std}; n = {rows} distributions",
    "flagship": "Task {sweep[common][task][name]}, {sweep[common][model][name]}; "
    "FP8 range, 2 mantissa bits, truncated at every site; n = 8 initial policies x {n} seeds",
    "flagship_sweep": "Task add, tiny-llama; FP8 range, 2 mantissa bits, truncated; n = {n} seeds",
    "token_probabilities": "Task chain, tiny-llama; truncation to 2 mantissa bits, or BF16; "
    "{stored:,} tokens of 8 initial policies per panel, correlations of all their tokens",
    "accumulator_drift": "Task {base[task][name]}, {base[model][num_hidden_layers]}-layer "
    "{base[model][name]}, {base[steps]} on-policy steps; noise: see legend; n = {n} initial policies",
    "gpu_pairs": "SmolLM2-135M and policies trained on add ({steps} steps); no injected noise; "
    "{prompts} prompts, {positions} positions; n = {n} seeds",
    "attribution_ladder": "Task add, engines {engines}; "
    "n = {prompts} prompts x {samples} samples, one initial policy per model",
    "real_pairs": "Real engines on CPU, no injected noise; a MoE policy trained on add, and SmolLM2-135M",
    "real_rl": "Task {task}, {model}; vLLM in BF16 with FP8 cache on CPU; n = 1 vLLM run, {n} emulated seeds",
    "bench_quantize": CORES + ", {elements:,} values; median of {rounds} rounds; donated: in place; " + JIT,
    "bench_linear": CORES + "; median of {rounds} rounds; " + JIT,
    "bench_step": CORES + ", {model[num_hidden_layers]}-layer dense policy; least time of several rounds",
    "bench_speedup": CORES + ", flagship shape, {processes} x {runs} runs; before: commit {parent:.7}",
    "bench_compile": CORES + ", flagship shape unless stated; {within} is the largest factor wanted",
    "bench_sweep": CORES + ", task {base[task][name]}, {base[model]}, engines {base[engines]}",
    "bench_device": CORES + ", task {config[task][name]}, {config[model][name]}, "
    "engines {config[engines][name]}",
    "bench_gpu": "One {device[kind]}, task {config[task][name]}, {config[model][name]}, "
    "engines {config[engines][name]}",
    "real_card": "One {card}; standard normal operands, also times powers of two up to 8; "
    "products of 64 to 4096 terms",
    "bench_tensor_cores": CORES + "; rows, terms, columns: {products}; median of {rounds} rounds; " + JIT,
}
"""Task, noise and n of experiments without a table `runs` of arms; fields are those of the manifest."""


def describe_setting(results: Results, experiment: str, arms: Sequence[str] | None) -> str:
    """Return task, model, noise levels and n behind a figure.

    Args:
        results: of the experiment.
        experiment: its name; `SETTINGS` describes those without arms.
        arms: the arms that the figure shows; None for all.
    """
    if experiment in SETTINGS:
        manifest = results.manifest
        config = manifest["config"]
        described = {"n": len(manifest["seeds"]), "device": manifest["device"]}
        if experiment == "bench_tensor_cores":
            shapes = config["shapes"].items()
            described["products"] = ", ".join(f"{name} {shape}" for name, shape in shapes)
        return SETTINGS[experiment].format_map(described | config)
    runs: Any = results.table("runs")
    runs = runs if arms is None else runs[runs["arm"].isin(list(arms))]
    if runs.empty:
        return ""
    policies, seeds = runs.groupby("arm")["initial_policy"].nunique(), runs["seed"].nunique()
    n = f"n = {_range(policies)} initial policies" + (f" x {seeds} seeds" if seeds > 1 else "")
    task = f"Task {_join(runs['task'])}, {_join(runs['model'])}, {_join(runs['steps'])} steps"
    return f"{task}; noise: {_describe_noise(runs)}; {n}"


@cache
def _board() -> list[Row]:
    return board().rows


def find_rows(results: Results, experiment: str, claims: Sequence[str], decided_by: str = "") -> list[Row]:
    """Return the rows of the board behind a figure: those of `claims` that its experiment decides.

    It is `experiment`, whose results the figure draws, or the one named. Empty for results other than those
    shipped with the package: the board reads these.
    """
    folder = getattr(results, "folder", None)
    if folder is None or folder.resolve() != committed_results(experiment).resolve():
        return []
    deciding = decided_by or experiment
    rows = {row.id: row for row in _board() if row.experiment == deciding and row.primary}
    return [rows[claim] for claim in claims if claim in rows]


def find_level(rows: Sequence[Row]) -> float:
    """Return the confidence level at which the board tested the first of `rows`; 95% without rows."""
    return 1 - (rows[0].primary.alpha if rows and rows[0].primary else ALPHA)


def state_finding(row: Row) -> str:
    """Return verdict, statement, claim id and n in one sentence, and whether the rule came after the run."""
    num = row.primary.num_policies if row.primary else 0
    n = f", n = {num}" if num else ""
    return (
        f"{row.verdict.capitalize()}: {row.claim.statement} ({row.id}{n}{LATE_RULES.get(row.registered, '')})"
    )


def state_estimates(rows: Sequence[Row], own_labels: Mapping[str, str]) -> list[str]:
    """Return the primary criterion of each row with estimate, interval and margin, then open premises.

    Without its premise a row has no other verdict, whatever its primary criterion shows. `own_labels` of the
    figure replace the stored labels of arms, which two arms may share.
    """
    lines, lacking = [], {}
    for number, row in enumerate(rows):
        if row.primary is None:
            continue
        labels = _find_labels(row.experiment) | dict(own_labels)
        verdict = f" {row.verdict}" if number else ""
        lines.append(f"{row.id}{verdict}: {state_criterion(row.primary, labels)}")
        premises = [each for each in row.criteria if each.criterion.role == "manipulation"]
        for each in [each for each in premises if each.verdict != "supported"][:1]:
            text = f"premise {each.verdict}: {state_criterion(each, labels)}"
            lacking.setdefault(text, []).append(row.id)
    return [*lines, *(f"{', '.join(ids)}, {text}" for text, ids in lacking.items())]


def state_criterion(evidence: CriterionEvidence, labels: Mapping[str, str]) -> str:
    """Return quantity, estimate, interval and margin, with the labels of the arms."""
    criterion = evidence.criterion
    if criterion.contrast is not None:
        labelled = {arm: Arm(labels.get(arm.id, arm.id)) for arm in criterion.arms}
        criterion = replace(criterion, contrast=criterion.contrast.with_arms(labelled))
    return f"{criterion.text} = {estimate_text(evidence)}, margin {criterion.margin:.2g}"


@cache
def _find_labels(experiment: str) -> dict[str, str]:
    results = Results(committed_results(experiment))
    return read_labels(results) if "runs" in results.table_names else {}


def _describe_noise(runs: Any) -> str:
    """Return each kind of noise, most frequent first, with its levels in mantissa bits where it has such."""
    words = []
    for kind in runs["noise_kind"].value_counts(sort=True).index:
        levels = sorted(set(runs.loc[runs["noise_kind"] == kind, "noise_level"]))
        bits = f"{', '.join(f'{level:g}' for level in levels)} mantissa bit{'s' * (levels != [1])}"
        words.append(f"{kind} ({bits})" if kind in BITS else kind)
    return " / ".join(words)


def _join(values: Any) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _range(numbers: Any) -> str:
    low, high = numbers.min(), numbers.max()
    return f"{low}" if low == high else f"{low} to {high}"


def add_heading(figure: Figure, finding: str, shown: str, small: Sequence[str]) -> None:
    """Make a figure higher and write its finding, what is drawn, and lines of small letters above."""
    width, height = figure.get_size_inches()
    parts = ((finding, BOLD), (shown, PLAIN if finding else BOLD), *((line, SMALL) for line in small))
    lines = [
        (line, style)
        for text, style in parts
        for line in textwrap.wrap(
            text.replace("n = ", "n\xa0=\xa0").replace("margin ", "margin\xa0"),
            int(72 * width / ((BOLD_LETTER if style is BOLD else LETTER) * style.fontsize)),
        )
    ]
    heading = 0.06 + sum(LINE * style.fontsize / 72 for _, style in lines)
    total = height + heading
    figure.set_size_inches(width, total)
    # The layout reserves no room for a legend with an anchor.
    legends: list[Any] = figure.legends
    upper = [legend for legend in legends if legend._outside_loc == "upper"]
    room = max([legend.get_window_extent().height / figure.dpi + 0.05 for legend in upper], default=0)
    for legend in upper:
        legend.set_bbox_to_anchor((0, 0, 1, height / total), figure.transFigure)
    layout: Any = figure.get_layout_engine()
    layout.set(rect=(0, 0, 1, (height - room) / total))
    y = total - 0.04
    for line, style in lines:
        figure.text(0.06 / width, y / total, line, va="top", **style._asdict())
        y -= LINE * style.fontsize / 72
