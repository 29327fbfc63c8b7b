"""Write the generated parts of README.md and of pages in docs/: `python -m scripts.readme`.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
Its text comes from the catalogs and from stored results. `--check` only compares.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from figures.catalog import FIGURES
from figures.papers import DIFFERS, NOT_DRAWN
from scripts import diagnosis_tables, findings, framework_names, verdict_tables
from scripts.equations import PAPERS
from scripts.tables import load_stored, table
from simlab.core.manifest import MANIFEST_NAME
from simlab.core.paths import committed_results
from simlab.engines import ENGINES
from simlab.formats import FORMATS
from simlab.objectives import OBJECTIVE_MODIFIERS, OBJECTIVES, get_objective, override_defaults
from simlab.studies.board import summary
from simlab.studies.loading import load_claims, load_experiment
from simlab.studies.provenance import recorded_arms
from simlab.tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ("results", "figures", "objectives", "performance", "limits", "diagnosis")
PAGES = ("README.md", *(f"docs/{name}.md" for name in DOCS))
WANTED_RATIO = 1.3
"""Time of an emulated step over that of a float32 step that the project aims at, in a batch of runs."""
PART = re.compile(r"(<!-- generated: (\w+) -->)(.*?)(<!-- end -->)", re.DOTALL)


def is_stored(experiment: str) -> bool:
    """Return whether a result of `experiment` is shipped with the code."""
    return (committed_results(experiment) / MANIFEST_NAME).is_file()


def example() -> str:
    """Return what the example prints, and what it shows."""
    means = load_stored("readme_example").table("means").set_index("engines")
    fine, coarse = means.iloc[0], means.iloc[1]
    shown = "\n".join(line.rstrip() for line in str(means.round(3)).splitlines())
    ratio, loss = coarse["rms_log_rho"] / fine["rms_log_rho"], fine["reward"] - coarse["reward"]
    return (
        f"\n```text\n{shown}\n```\n\n"
        "Training is float32; inference rounds every matrix operand to FP8, toward zero. With one mantissa "
        f"bit fewer, the RMS log rho between the engines is {ratio:.1f} times as large and reward is "
        f"{loss:.2f} lower (one initial policy, two seeds: an illustration; numbers differ on another CPU "
        "or JAX version).\n"
    )


def leaderboard_regime() -> str:
    """Return formats, response length and steps of the runs of the dense leaderboard."""
    arm: Any = recorded_arms(load_stored("leaderboard").manifest["config"])["chain: no correction"]
    sites = arm["changes"]["engines"]["infer"]["projection"]
    activations, weights = (sites[name]["format"]["mantissa_bits"] for name in ("activations", "weights"))
    length = TASKS[arm["changes"]["task"]]().response_length
    return (
        f"FP8 range with {activations} (activations) and {weights} (weights) mantissa bits, truncated; "
        f"{length}-token responses, {arm['steps']} steps"
    )


def papers() -> str:
    """Return the keys of the papers with their titles."""
    named = "; ".join(f"*{key}*: {title}" for key, title in PAPERS.items())
    return f"\nPapers: {named}. [EQUATIONS.md](EQUATIONS.md) lists where each equation lives in the code.\n"


def peers() -> str:
    """Return the frameworks that the objectives are compared with, and their pinned versions."""
    pins = (ROOT / "requirements" / name for name in ("verl.txt", "trl.txt"))
    versions = (re.search(r"^(?:verl|trl)==(\S+)", path.read_text(), re.MULTILINE) for path in pins)
    return " and ".join(
        f"{name} {found[1]}" for name, found in zip(("verl", "TRL"), versions, strict=True) if found
    )


def remade() -> str:
    """Return which command makes the data of each figure again, its minutes, and the number of runs."""
    figures: dict[str, list[str]] = {}
    for name, row in FIGURES.items():
        figures.setdefault(row.experiment, []).append(f"`{name}`")
    rows = []
    for experiment, names in figures.items():
        runs = (
            load_stored(experiment).manifest["tables"].get("runs", "") if is_stored(experiment) else "not run"
        )
        minutes = load_experiment(experiment).minutes
        rows.append(f"`simlab run {experiment}` | {minutes:g} | {runs} | {', '.join(names)}")
    return table("command | minutes, two cores: | stored runs: | figures", rows)


def paper_figures() -> str:
    """Return our figure of each figure and table of the papers, and how the two differ."""
    rows = [
        f"{row.paper} | `{name}` | `{row.experiment}` | {row.title} | {DIFFERS.get(row.paper, '')}"
        for name, row in FIGURES.items()
        if row.paper
    ]
    rows += [f"{item} | - | | not drawn | {reason}" for item, reason in NOT_DRAWN.items()]
    return table("paper | our figure | experiment | what it shows | difference", rows)


# Choices that all objectives have, as the presets of 2026 make them.
USUAL = {"advantage": "grpo", "aggregation": "token-mean", "group_filter": False, "baseline": "survivors"}
KINDS = {"correction": "correction", "rejections": "rejection", "regularizers": "term", "centering": "term"}


def _defaults(name: str, without: Mapping[str, object]) -> str:
    """Return the overrides of an objective that `without` lacks, with their defaults."""
    found = override_defaults(get_objective(name)).items()
    return ", ".join(f"`{key}` {_number(value)}" for key, value in found if without.get(key, "?") != value)


def _number(value: object) -> str:
    if isinstance(value, tuple):
        return " to ".join(map(_number, value))
    if value is None:
        return "off"
    return f"{value:g}" if isinstance(value, float) else f"`{value}`"


def objective_names() -> str:
    """Return what frameworks call the presets of 2026, with the defaults of the catalog."""
    rows = (
        f"`{name}` | {_defaults(name, USUAL)} | {frameworks} | {checked}"
        for name, (frameworks, checked) in framework_names.PRESETS.items()
    )
    return table("simlab | defaults | framework: name (default) | checked", rows)


def modifier_names() -> str:
    """Return what frameworks call the modifiers of 2026, with the defaults of the catalog."""
    plain = override_defaults(get_objective("reinforce")) | {"baseline": "survivors"}
    rows = []
    for name, (frameworks, checked) in framework_names.MODIFIERS.items():
        kind = KINDS[OBJECTIVE_MODIFIERS[name].field]
        rows.append(
            f"`+{name}` | {kind} | {_defaults(f'reinforce+{name}', plain)} | {frameworks} | {checked}"
        )
    return table("simlab | kind | defaults | framework: name (default) | checked", rows)


def vocabulary_cost() -> str:
    """Return what the column of all log-probabilities costs, from `bench_vocabulary`."""
    columns: Any = load_stored("bench_vocabulary").table("columns")
    rows = (
        f"{row.vocabulary} | {row.objective} | {row.column_bytes} | {row.temporary_bytes / 1e6:.1f} "
        f"| {float(f'{1e3 * row.seconds:.2g}'):g}"
        for row in columns.itertuples()
    )
    return table("V: | objective | bytes per token and engine: | temporary memory, MB: | time, ms:", rows)


def step_speed() -> str:
    """Return the time of one flagship step against its products and its peers, from `bench_step`."""
    stages: Any = load_stored("bench_step").table("stages")
    steps = stages[stages["stage"] == "step"].set_index("implementation")
    ms = steps["ms"]

    def least(peer: str) -> str:
        times = ms[ms.index.str.startswith(peer)]
        return f"{times.min() / ms['emulated']:.2g} times as long" if len(times) else "not measured"

    return (
        f"{steps.loc['emulated', 'steps_per_s']:.1f} steps/s with emulated FP8; a step takes "
        f"{steps.loc['emulated', 'floors']:.2f} times as long as its matrix products alone and "
        f"{ms['emulated'] / ms['float32']:.2f} times as long as a float32 step. Compiled PyTorch takes "
        f"{least('pytorch')} as simlab, TRL's trainer {least('trl')}"
    )


def first_steps() -> str:
    """Return the seconds of a process that sweeps one step, imports included, from `bench_compile`."""
    rows: Any = load_stored("bench_compile").table("first_steps").to_dict("records")
    return ", ".join(
        f"{row['cache']} {row['process_seconds']:.1f} s ({row['cpu_seconds']:.1f} CPU s)" for row in rows
    )


def forecasts() -> str:
    """Return how many forecasts are within the factor wanted, from `bench_compile`."""
    stored = load_stored("bench_compile")
    factors, within = stored.table("sweeps")["off_by"], stored.manifest["config"]["within"]
    return (
        f"{(factors <= within).sum()} of {len(factors)} within a factor {within}; worst {factors.max():.2f}"
    )


def engine_speed() -> str:
    """Return time of a step and of compilation by engine, from `bench_step`."""
    times: Any = load_stored("bench_step").table("engines")
    batches, lone = (times[times["runs_per_batch"] == runs].set_index("engine") for runs in (8, 1))
    rows = []
    for engine, batch in batches.iterrows():
        alone = lone.loc[engine] if engine in lone.index else None
        steps = (
            "- | -" if row is None else f"{row.ms:.0f} ({row.cpu_ms:.0f}) | {row.ratio:.2f}"
            for row in (batch, alone)
        )
        rows.append(
            f"`{engine}` | {' | '.join(steps)} | {batch.cold_seconds:.1f} ({batch.cold_cpu_seconds:.1f}) "
            f"| {batch.warm_seconds:.1f} ({batch.warm_cpu_seconds:.1f})"
        )
    slow = [f"`{engine}` ({row.ratio:.2f})" for engine, row in batches.iterrows() if row.ratio > WANTED_RATIO]
    named = ", ".join(slow) or "none"
    head = (
        "inference engine | step of 8 runs, ms (CPU): | times float32: | of 1 run, ms (CPU): "
        "| times float32: | compilation (8 runs): cold, s (CPU): | warm, s (CPU):"
    )
    return table(head, rows) + f"\nIn a batch, more than {WANTED_RATIO} times as long as float32: {named}.\n"


def machine_speed() -> str:
    """Return the run-steps per second of all cores, of simlab and of PyTorch, from `bench_step`."""
    processes: Any = load_stored("bench_step").table("machine")
    rates = processes.groupby("implementation", sort=False)["run_steps_per_s"].agg(["first", "last"])
    rates.index = rates.index.str.replace("pytorch", "PyTorch")
    return "; ".join(
        f"{name} per process: {row['first']:.0f} and {row['last']:.0f}" for name, row in rates.iterrows()
    )


def throughput() -> str:
    """Return the run-steps per second of two processes before and now, from `bench_speedup`."""
    speed: Any = load_stored("bench_speedup").table("speed").dropna(subset="run_steps_per_s")
    rates = speed.pivot(index="engines", columns="version", values="run_steps_per_s")
    return ", ".join(f"{row.now:.0f} under `{pair}` ({row.before:.0f})" for pair, row in rates.iterrows())


def speedup() -> str:
    """Return times before the work on speed and now, and of both forms of engines, from `bench_speedup`."""
    stored = load_stored("bench_speedup")
    speed: Any = stored.table("speed").pivot(
        index=["quantity", "engines"], columns="version", values=["seconds", "cpu_seconds"]
    )
    steps = []
    for (quantity, engines), row in speed.iterrows():
        wall, cpu = row["seconds"], row["cpu_seconds"]
        times = [f"{wall[version]:.3g} ({cpu[version]:.3g})" for version in ("before", "now")]
        ratio = f"{wall['before'] / wall['now']:.2f} ({cpu['before'] / cpu['now']:.2f})"
        steps.append(f"{quantity} | `{engines}` | {' | '.join(times)} | {ratio}")
    rollouts: Any = stored.table("rollouts").pivot(
        index="engine", columns="form", values=["cpu_ms", "compile_cpu_seconds"]
    )
    costs = []
    for engine, row in rollouts.iterrows():
        taken, compiling = row["cpu_ms"], row["compile_cpu_seconds"]
        costs.append(
            f"`{engine}` | {taken['arguments']:.0f} ms | {taken['constants']:.0f} ms "
            f"| {compiling['arguments']:.1f} s | {compiling['constants']:.1f} s"
        )
    return table(
        "2 batches of 8 runs | engines | before, s (CPU): | now, s (CPU): | ratio (CPU):", steps
    ) + table(
        "rollout of 8 runs, CPU time | arguments: rollout: | constants: rollout: | arguments: compilation: "
        "| constants: compilation:",
        costs,
    )


def model_size() -> str:
    """Return what larger models and longer responses cost, from `bench_size`."""
    sizes: Any = load_stored("bench_size").table("sizes")
    rows = (
        f"{row.parameters / 1e6:.1f} M | {row.tokens} | `{row.engines}` "
        f"| {'on' if row.gradient_checkpointing else 'off'} "
        f"| {row.compile_seconds:.0f} ({row.compile_cpu_seconds:.0f}) "
        f"| {row.seconds:.2f} ({row.cpu_seconds:.2f}) "
        f"| {row.resident_mb:.0f} | {row.growth_mb:.1f} | {row.compile_peak_mb:.0f}"
        for row in sizes.itertuples()
    )
    return table(
        "parameters: | tokens: | engines | gradient checkpointing | compilation, s (CPU): | step, s (CPU): "
        "| memory, MB: | growth in 20 steps, MB: | peak in compilation, MB:",
        rows,
    )


def correction_errors() -> str:
    """Return bias and error of the corrections of 2026 and some old ones, from `group_corrections`."""
    moments: Any = load_stored("group_corrections").table("moments")
    level = moments["rho_std"].max()
    mean: Any = moments[moments["rho_std"] == level].groupby("correction")[["bias", "std", "mse_64"]].mean()
    head = f"correction (std of rho {level:g}) | bias: | std, one group: | MSE, mean of 64 groups:"
    rows = (
        f"{name} | {row['bias']:.2f} | {row['std']:.2f} | {row['mse_64']:.3f}"
        for name, row in mean.sort_values("mse_64").iterrows()
    )
    return table(head, rows)


def gpu_speed() -> str:
    """Return the device and its run-steps per second at the largest batch sizes, from `bench_gpu`."""
    stored = load_stored("bench_gpu")
    rows: Any = stored.table("batch_sizes").query("stage == 'step'").tail(2)
    rates = " and ".join(f"{row.run_steps_per_s:,.0f} with {row.runs_per_batch}" for row in rows.itertuples())
    commit, version = stored.manifest["commit"] or "unknown", stored.manifest["versions"]["jax"]
    made = f"commit {commit[:7]}, JAX {version}"
    return f"{stored.manifest['device']['kind']}: {rates} runs per batch ({made})"


def e4m3_collapses(experiment: str) -> str:
    """Return how many runs with E4M3 rollouts collapse, from `e4m3_dynamics` or `e4m3_moe_dynamics`."""
    rate = verdict_tables.find_row("A1", experiment).criteria[1]
    return f"{round((rate.estimate or 0.0) * rate.num_policies)} of {rate.num_policies}"


def held_out_gaps() -> str:
    """Return how far rewards on training and held-out prompts differ where both are stored."""
    stored = load_stored("held_out_gap")
    gaps, agree = stored.table("gaps"), stored.manifest["config"]["agree"]
    inside = (gaps["gap_low"] > -agree) & (gaps["gap_high"] < agree)
    outside = (gaps["gap_low"] > agree) | (gaps["gap_high"] < -agree)
    names = ", ".join(f"`{name}`" for name in gaps["experiment"][outside].unique())
    least, most = gaps["gap"][outside].min(), gaps["gap"][~outside].abs().max()
    return (
        f"in {outside.sum()} of {len(gaps)} arms of {gaps['experiment'].nunique()} experiments the means of "
        f"the two differ by {least:.2f} or more ({names}; family-wise intervals beyond ±{agree:g}), in the "
        f"others by at most {most:.2g}; in {inside.sum()} arms the interval lies within ±{agree:g}"
    )


PARTS: dict[str, Callable[[], str]] = {
    "board": lambda: f"\n{summary(verdict_tables.stored_rows())}\n",
    "claims": verdict_tables.claims,
    "decision_rule": verdict_tables.decision_rule,
    "correction_errors": correction_errors,
    "powers": verdict_tables.powers,
    "detectable": verdict_tables.detectable,
    "e4m3_collapses": partial(e4m3_collapses, "e4m3_dynamics"),
    "e4m3_moe_collapses": partial(e4m3_collapses, "e4m3_moe_dynamics"),
    "engine_speed": engine_speed,
    "example": example,
    "findings": findings.findings,
    "first_steps": first_steps,
    "forecasts": forecasts,
    "gpu_products": findings.gpu_products,
    "gpu_speed": gpu_speed,
    "held_out_gaps": held_out_gaps,
    "leaderboard_regime": leaderboard_regime,
    "largest_error": verdict_tables.largest_error,
    "longest_response": lambda: str(max(task().response_length for task in TASKS.values())),
    "model_size": model_size,
    "modifier_names": modifier_names,
    "objective_names": objective_names,
    "paper_figures": paper_figures,
    "papers": papers,
    "peers": peers,
    "regimes": verdict_tables.regimes,
    "remade": remade,
    "replications": verdict_tables.replications,
    "num_claims": lambda: str(len(load_claims())),
    "num_engines": lambda: str(len(ENGINES)),
    "num_formats": lambda: str(len(FORMATS)),
    "num_objectives": lambda: str(len(OBJECTIVES)),
    "num_tasks": lambda: str(len(TASKS)),
    "machine_speed": machine_speed,
    "speedup": speedup,
    "throughput": throughput,
    "step_speed": step_speed,
    "surprises": verdict_tables.surprises,
    "vocabulary_cost": vocabulary_cost,
} | diagnosis_tables.PARTS


def render(text: str) -> str:
    """Return `text` with its generated parts renewed. Raises `KeyError` for an unknown part."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}{part[4]}", text)


def main() -> None:
    """Renew the pages, or exit with an error if one is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    is_check = parser.parse_args().check
    for page in PAGES:
        text = (ROOT / page).read_text()
        new = render(text)
        if not is_check:
            (ROOT / page).write_text(new)
        elif new != text:
            sys.exit(f"{page} is out of date: python -m scripts.readme")


if __name__ == "__main__":
    main()
