"""`simlab list`: print the catalogs."""

import re
from collections.abc import Callable, Iterator

import typer

from simlab.cli.output import Json, show
from simlab.core.plugins import import_from_checkout

app = typer.Typer(
    no_args_is_help=True,
    help="List the catalogs: formats, engines, pairs, noise kinds, objectives, tasks, models and others.",
    epilog="Example: `simlab list formats --json`",
)


@app.command(epilog="Example: `simlab list formats`")
def formats(json: Json = False) -> None:
    """List number formats with mantissa bits, range and unit roundoff."""
    from simlab.formats import FORMATS

    rows = [
        {
            "name": name,
            "mantissa_bits": int(fmt.mantissa_bits),
            "min_exponent": int(fmt.min_exponent),
            "max_finite": float(fmt.max_finite),
            # An integer format has no normal range, so no relative bound holds in it.
            "unit_roundoff": 2.0 ** -(int(fmt.mantissa_bits) + 1)
            if fmt.max_finite >= 2.0 ** int(fmt.min_exponent)
            else None,
        }
        for name, fmt in FORMATS.items()
    ]
    show(rows, json, "Number formats")


@app.command(epilog="Example: `simlab list experiments --json`")
def experiments(json: Json = False) -> None:
    """List experiments with question, claims and time."""
    from simlab.studies.loading import find_figures, load_experiments

    rows = [
        {
            "name": name,
            "question": experiment.question,
            "claims": list(experiment.claims),
            "minutes": experiment.minutes,
            "figures": list(find_figures(name)),
        }
        for name, experiment in load_experiments().items()
    ]
    show(rows, json, "Experiments")


@app.command(epilog="Example: `simlab list figures`")
def figures(json: Json = False) -> None:
    """List figures with their experiment and title."""
    catalog = import_from_checkout("figures.catalog").FIGURES
    rows = [
        {"name": name, "experiment": source.experiment, "paper": source.paper, "caption": source.caption}
        for name, source in catalog.items()
    ]
    show(rows, json, "Figures")


@app.command(epilog="Example: `simlab list objectives --json`")
def objectives(json: Json = False) -> None:
    """List objectives and modifiers with source, overrides and defaults."""
    from simlab.objectives import OBJECTIVE_MODIFIERS, OBJECTIVES, get_objective, override_defaults

    plain = override_defaults(get_objective("reinforce"))
    rows = [
        {"name": name, "source": objective.source, "overrides": override_defaults(objective)}
        for name, objective in OBJECTIVES.items()
    ]
    for name, modifier in OBJECTIVE_MODIFIERS.items():
        added = override_defaults(get_objective(f"reinforce+{name}"))
        own = {key: value for key, value in added.items() if key not in plain}
        rows.append({"name": f"+{name}", "source": modifier.source, "overrides": own})
    show(rows, json, "Objectives and their modifiers; each modifier applies to any objective (grpo+tis)")


@app.command(epilog="Example: `simlab list engines`")
def engines(json: Json = False) -> None:
    """List engines with reference system, omissions and default pair."""
    from simlab.engines import ENGINE_CARDS
    from simlab.sweeps.config import DEFAULTS

    default = str(DEFAULTS["engines"]).split("/")
    rows = [
        {
            "name": name,
            "reference_system": card.reference_system,
            "not_modeled": card.not_modeled,
            "backward": card.engine.projection.backward,
            "default": name in default,
        }
        for name, card in ENGINE_CARDS.items()
    ]
    show(rows, json, "Engines; a pair is written train/infer")


@app.command(epilog="Example: `simlab list pairs --json`")
def pairs(json: Json = False) -> None:
    """List engine pairs with their training and inference engines."""
    from simlab.engines import ENGINE_PAIRS, EXACT_PAIRS

    rows = [
        {"name": name, "train": name.split("/")[0], "infer": name.split("/")[1], "exact": name in EXACT_PAIRS}
        for name in ENGINE_PAIRS
    ]
    show(rows, json, "Engine pairs; in exact pairs, decoding and scoring are bitwise identical")


@app.command(epilog="Example: `simlab list metrics --json`")
def metrics(json: Json = False) -> None:
    """List metrics with input, schedule, unit and source."""
    from simlab.metrics import CURVE_METRICS, METRICS, OBJECTIVE_METRICS, WEIGHT_METRICS
    from simlab.training.diagnostics import DIAGNOSTICS
    from simlab.training.measure import STEP_METRICS, STEP_NUMBERS

    rows = [
        {"name": name, "reads": "run", "measured": "every step", "about": about, "unit": "", "source": ""}
        for name, about in STEP_NUMBERS.items()
    ]
    rows += [_describe(name, metric, "run", "between chunks") for name, metric in DIAGNOSTICS.items()]
    rows += [
        _describe(
            name, metric, "token batch", "every step" if name in STEP_METRICS else "if `metrics` names it"
        )
        for name, metric in METRICS.items()
    ]
    for reads, catalog in (
        ("objective, token batch", OBJECTIVE_METRICS),
        ("weights", WEIGHT_METRICS),
        ("curves of a run", CURVE_METRICS),
    ):
        rows += [_describe(name, metric, reads, "on demand") for name, metric in catalog.items()]
    show(rows, json, "Metrics and diagnostics; without a unit: dimensionless")


@app.command(epilog="Example: `simlab list tasks`")
def tasks(json: Json = False) -> None:
    """List tasks with their reward and response length."""
    from simlab.tasks import TASKS

    rows = [
        {"name": name, "about": _first_line(task), "response_length": task().response_length}
        for name, task in TASKS.items()
    ]
    show(rows, json, "Tasks, with their default difficulty")


@app.command(epilog="Example: `simlab list models`")
def models(json: Json = False) -> None:
    """List model presets with their shapes."""
    from simlab.models import MODELS

    shown = ("num_hidden_layers", "hidden_size", "num_experts", "num_experts_per_tok", "qk_norm")
    rows = [
        {"name": name} | {field: getattr(config, field) for field in shown} for name, config in MODELS.items()
    ]
    show(rows, json, "Models; fields as in Qwen3's config.json")


@app.command(epilog="Example: `simlab list schedules`")
def schedules(json: Json = False) -> None:
    """List learning-rate schedules with their parameters."""
    from simlab.training.schedules import SCHEDULES

    rows = [
        {"name": name, "about": _first_line(kind), "numbers": list(vars(kind()))}
        for name, kind in SCHEDULES.items()
    ]
    show(rows, json, "Schedules")


@app.command(epilog="Example: `simlab list noise-kinds`")
def noise_kinds(json: Json = False) -> None:
    """List kinds of rounding noise that can be injected into the inference engine of a pair."""
    from simlab.engines.noise_levels import NOISE_KINDS

    rows = [{"name": name, "about": _first_line(kind)} for name, kind in NOISE_KINDS.items()]
    show(rows, json, "Noise kinds")


@app.command(epilog="Example: `simlab list sites --json`")
def sites(json: Json = False) -> None:
    """List the rounding sites of an engine with config key and allowed values."""
    from dataclasses import fields, is_dataclass

    from simlab.engines import Engine, Site
    from simlab.engines.engine import BACKWARDS, NORMALIZE

    site = f"a format's name, or a table of {', '.join(vars(Site()))}"
    products = "a table of the sites of projection; default: those of projection"
    sums = ("accumulator", "score_accumulator", "value_accumulator")
    others = {
        **dict.fromkeys(sums, "the order of the sum; set by the engine's name"),
        "fused": "the order of the sums of fused attention; set by the engine's name",
        "dequantized": f"{site}; default: scales are applied after the sum",
        "experts": products,
        "row_parallel": products,
        "backward": ", ".join(BACKWARDS),
        "normalize": ", ".join(NORMALIZE),
        "cache_from": "a position, 0 or more",
        "expert_ranks": "a number of ranks, 1 or more",
    }

    def walk(record: object, key: str) -> Iterator[dict[str, str]]:
        name = key.rpartition(".")[2]
        if isinstance(record, Site):
            yield {"name": key, "takes": site}
        elif name in others:
            yield {"name": key, "takes": others[name]}
        elif is_dataclass(record):
            for each in fields(record):
                yield from walk(getattr(record, each.name), f"{key}.{each.name}")
        else:
            raise NotImplementedError(f"{key} must be described here.")

    show(
        list(walk(Engine(), "engines.infer")),
        json,
        "Sites of the inference engine; engines.train has the same",
    )


@app.command(epilog="Example: `simlab list notebooks`")
def notebooks(json: Json = False) -> None:
    """List the notebooks shipped with the package with title and path."""
    from simlab.core.paths import checkout_root

    rows = []
    for path in sorted((checkout_root() / "notebooks").glob("[0-9]*.py")):
        title = re.search(r"^# # (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        rows.append({"name": path.stem, "title": title[1] if title else "", "path": str(path)})
    show(rows, json, "Notebooks; open one with: jupytext --to ipynb PATH")


def _first_line(unit: Callable) -> str:
    """Return the first line of a docstring, of a function's without "Return the"."""
    line = (unit.__doc__ or "").split("\n", 1)[0]
    return re.sub(r"^Return (?:the |an? )?(.)", lambda match: match[1].upper(), line)


def _describe(name: str, metric: Callable, reads: str, measured: str) -> dict[str, str]:
    """Return a row from the docstring: its first line, and its lines `Unit:` and `Reference:`."""
    text = metric.__doc__ or ""

    def line(label: str) -> str:
        match = re.search(rf"^ *(?:{label}): (.+?)\.?$", text, re.MULTILINE)
        return match.group(1) if match else ""

    return {
        "name": name,
        "reads": reads,
        "measured": measured,
        "about": _first_line(metric),
        "unit": line("Unit"),
        "source": line("Reference"),
    }
