"""Preview of an experiment before any compute: arms, claims, criteria, power, cost."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simlab.core.json_value import Json
from simlab.core.manifest import MANIFEST_NAME
from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.studies.board import CORES
from simlab.studies.contrasts import Contrast, Share, ShareDifference
from simlab.studies.design import Design
from simlab.studies.estimands import EARLY, Views
from simlab.studies.experiment import Experiment
from simlab.studies.loading import load_claims
from simlab.studies.power import criterion_power, largest_std, last_alpha, primary_family, true_effect
from simlab.studies.records import Claim, Criterion, Trial, arms_of, trials_of
from simlab.studies.verdicts import initial_mismatch

SHOWN = ("objective", "train_engine", "infer_engine", "schedule", "model", "noise_kind", "noise_level")
"""Attributes of an arm in the text of a preview."""
Row = dict[str, Json]


def preview(experiment: Experiment, folder: Path | None = None) -> Row:
    """Return the plan of an experiment as plain values; `design` is None without training.

    `folder` holds a stored result for the variances; default the result shipped with the code.
    """
    stored = folder or committed_results(experiment.name)
    design = experiment.design
    has_runs = design is not None and (stored / MANIFEST_NAME).is_file()
    views = Views(Results(stored)) if has_runs else None
    claims = load_claims()
    return {
        "experiment": experiment.name,
        "question": experiment.question,
        "kind": experiment.kind,
        "core_minutes": CORES * experiment.minutes,
        "design": None if design is None else _describe_design(design, views),
        "arms": [] if design is None else _describe_arms(design),
        "claims": [
            _describe_claim(claims, trial, views)
            for trial in trials_of(list(claims.values()), experiment.name)
        ],
    }


def _describe_design(design: Design, views: Views | None) -> Row:
    policies = {label for arm in design.arms.values() for label in arm.initial_policies}
    return {
        "baseline": design.baseline,
        "initial_policies": sorted(policies),
        "seeds": sorted({seed for arm in design.arms.values() for seed in arm.seeds}),
        "max_runs": sum(len(arm.initial_policies) * len(arm.seeds) for arm in design.arms.values()),
        "initial_rms_log_rho": initial_mismatch(views, design.baseline) if views else None,
        "regime": design.arms[design.baseline].attributes(design.base),
    }


def _describe_arms(design: Design) -> list[Row]:
    return [
        {
            "arm": name,
            **arm.attributes(design.base),
            "steps": arm.steps,
            "initial_policies": list(arm.initial_policies),
            "differences": {field: list(pair) for field, pair in design.differences(name).items()},
        }
        for name, arm in design.arms.items()
    ]


def _describe_claim(claims: Mapping[str, Claim], trial: Trial, views: Views | None) -> Row:
    claim = claims[trial.claim]
    policies = min((len(arm.initial_policies) for arm in arms_of([trial])), default=0)
    family = primary_family(list(claims.values()), claim.paper, trial.is_exploratory)
    return {
        "claim": claim.id,
        "statement": claim.statement,
        "reference": f"{claim.paper} {claim.reference}",
        "regime": trial.regime.describe(),
        "criteria": [_describe_criterion(each, policies, family, views) for each in trial.criteria],
    }


def _describe_criterion(criterion: Criterion, policies: int, family: int, views: Views | None) -> Row:
    row: Row = {"role": criterion.role, "estimand": criterion.estimand.text}
    row |= {"direction": criterion.direction, "margin": criterion.margin, "because": criterion.because}
    if criterion.contrast is None:
        return row
    row |= {"contrast": criterion.contrast.text, "unit": criterion.unit, "power": None}
    tested = family if criterion.role == "primary" else 1
    if views is not None and criterion.arm_ids <= views.arms.keys():
        power = criterion_power(views, criterion, policies, tested)
        return row if power is None else row | asdict(power) | {"underpowered": power.is_underpowered}
    if isinstance(criterion.contrast, Contrast | Share | ShareDifference) and policies > 1:
        alpha, absent = last_alpha(policies, tested), criterion.direction == "zero"
        row |= {"alternative": abs(true_effect(criterion.direction, criterion.margin))}
        row |= {"num_policies": policies, "alpha": alpha}
        row |= {"largest_std": largest_std(criterion.margin, policies, alpha, absent)}
    return row


def format_preview(plan: Row) -> str:
    """Return the plan as text for a terminal."""
    lines = [
        f"{plan['experiment']}: {plan['question']}",
        f"cost: about {plan['core_minutes']:g} core-minutes",
    ]
    if plan["design"] is not None:
        lines += _format_design(plan["design"])
    for arm in plan["arms"]:
        lines += ["", f"arm {arm['arm']}"]
        lines.append("  " + ", ".join(f"{name} {_number(arm[name])}" for name in SHOWN))
        lines += [f"  {line}" for line in _format_differences(arm["differences"])]
    for claim in plan["claims"]:
        lines += ["", f"claim {claim['claim']} ({claim['reference']}): {claim['statement']}"]
        lines += [f"  regime: {claim['regime']}"]
        for criterion in claim["criteria"]:
            lines += _format_criterion(criterion)
    return "\n".join(lines)


def _format_design(design: Row) -> list[str]:
    mismatch = design["initial_rms_log_rho"]
    measured = (
        "not measured" if mismatch is None else f"{mismatch:.3g} nats (first {EARLY:.0%} of stored runs)"
    )
    return [
        f"baseline: {design['baseline']}; its initial RMS log rho: {measured}",
        f"initial policies: {', '.join(design['initial_policies'])}",
        f"seeds: {', '.join(map(str, design['seeds']))}; at most {design['max_runs']} runs",
    ]


def _format_differences(differences: Row) -> list[str]:
    """Return a line per difference; sites of one engine that change equally share a line."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for path, (base, ours) in differences.items():
        head, tail = (
            (".".join(path.split(".")[:2]), path.rpartition(".")[2])
            if path.startswith("engines.")
            else (path, "")
        )
        groups.setdefault((head, tail, f"{_number(base)} -> {_number(ours)}"), []).append(path)
    lines = []
    for (head, tail, change), paths in groups.items():
        inner = ", ".join(path.removeprefix(f"{head}.").removesuffix(f".{tail}") for path in paths)
        lines.append(f"{paths[0] if len(paths) == 1 else f'{head}.{{{inner}}}.{tail}'}: {change}")
    return lines


def _format_criterion(row: Row) -> list[str]:
    quantity = f"{row['estimand']}: {row['contrast']}" if "contrast" in row else row["estimand"]
    unit = f" {row['unit']}" if row.get("unit") else ""
    lines = [
        f"  {row['role']}: {quantity}",
        f"    expected {row['direction']}, margin {row['margin']:.3g}{unit} because: {row['because']}",
    ]
    if "contrast" not in row:
        return lines
    if "largest_std" in row:
        return [
            *lines,
            f"    power: unknown before the first runs; 80% at an effect of {row['alternative']:.3g} needs a "
            f"std of at most {row['largest_std']:.3g} ({row['num_policies']} initial policies, alpha "
            f"{row['alpha']:.2g})",
        ]
    if row["power"] is None:
        return [*lines, "    power: unknown before the first runs"]
    label = " underpowered" if row["underpowered"] else ""
    std = "" if row["std"] is None else f"std {row['std']:.3g}, "
    return [
        *lines,
        f"    power: {row['power']:.0%} at a true effect of {row['alternative']:.3g} ({std}"
        f"{row['num_policies']} initial policies, alpha {row['alpha']:.2g}){label}",
    ]


def _number(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
