"""`simlab calibrate`: rank emulated engines by their prediction of a measured pair."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simlab.cli.output import Json, one_clear_error, show
from simlab.core.plugins import import_from_checkout

if TYPE_CHECKING:
    import numpy as np

    from simlab.serving.calibration import Emulation, Fit

EPILOG = (
    "Example: `simlab calibrate runs/probe policy --sample vllm:bfloat16 --score transformers:float32 "
    "--engine bf16 --engine vllm-bf16 --noise-kind truncated --out runs/calibration`"
)
DEFAULT_ENGINES = ("bf16", "vllm-bf16", "fp16", "bf16-fp8kv", "int8-w8a8")
ResultsFolder = Annotated[Path, typer.Argument(help="Result directory of `simlab probe`.")]
Checkpoint = Annotated[Path, typer.Argument(help="Checkpoint that was probed.")]
SamplingEngine = Annotated[
    str | None,
    typer.Option("--sample", help="Measured sampling engine; required if the probe has several pairs."),
]
ScoringEngine = Annotated[
    str | None,
    typer.Option("--score", help="Measured scoring engine; required if the probe has several pairs."),
]
Engines = Annotated[
    list[str] | None,
    typer.Option(
        help="Emulated sampling engine; repeatable: one of `simlab list engines`, `q8_0`, `q4_0` or "
        "`bf16-fp8kv truncated`."
    ),
]
NoiseKind = Annotated[
    str | None,
    typer.Option(help="Kind of injected noise, tried at 4 to 10 bits; see `simlab list noise-kinds`."),
]
Train = Annotated[str, typer.Option(help="Emulated scoring engine.")]
Out = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="Result directory (default none: the table is only printed)."),
]


def calibrate(
    results: ResultsFolder,
    checkpoint: Checkpoint,
    sampling_engine: SamplingEngine = None,
    scoring_engine: ScoringEngine = None,
    engine: Engines = None,
    noise_kind: NoiseKind = None,
    train: Train = "f32",
    out: Out = None,
    json: Json = False,
) -> None:
    """Compare the distribution of log rho of emulated engines with a measured one, by probability bin.

    A distance of 0 is a perfect prediction; predicting no mismatch has a distance of 1. The figure shows
    the nearest emulation and the first one named.
    """
    from dataclasses import asdict

    from simlab.checkpoints.checkpoint_reader import load_checkpoint
    from simlab.core.results import Results
    from simlab.engines import find_engine
    from simlab.serving import calibration

    with one_clear_error():
        emulations = _choose_emulations(engine, noise_kind)
        scoring = find_engine(train)
        probe = Results(results)
        tokens = probe.table("tokens")
        pair = calibration.find_pair(tokens, sampling_engine, scoring_engine)
        prompts, responses, *measured = calibration.read_measured_pair(tokens, probe.table("samples"), *pair)
        model, params = load_checkpoint(checkpoint)

    def score(engine):
        return calibration.score_with_emulation(params, model, engine, prompts, responses)

    predicted_train = score(scoring)
    log_rho = {id(each.engine): predicted_train - score(each.engine) for each in emulations.values()}
    mask, logp_train, logp_infer = measured
    fits = calibration.calibrate(logp_train, logp_infer, mask, lambda engine: log_rho[id(engine)], emulations)
    show([asdict(fit) for fit in fits], json, f"{pair[0]} / {pair[1]} on {checkpoint}")
    if out is not None:
        labels = {"model": checkpoint.name, "sampling_engine": pair[0], "scoring_engine": pair[1]}
        predicted = {name: log_rho[id(each.engine)][mask] for name, each in emulations.items()}
        tables = _build_tables(fits, (logp_train - logp_infer)[mask], predicted, labels)
        config = {"checkpoint": str(checkpoint), "results": str(results), "train": train, **labels}
        _draw(out, {**config, "emulations": list(emulations)}, tables)


def _choose_emulations(engines: list[str] | None, noise_kind: str | None) -> "dict[str, Emulation]":
    """Return the emulations by name; without engines and a noise kind those of `DEFAULT_ENGINES`."""
    from simlab.core.catalog import lookup
    from simlab.engines import ENGINES
    from simlab.engines.noise_levels import NOISE_KINDS
    from simlab.serving import calibration
    from simlab.serving.emulations import get_real_kernels

    names = engines or (() if noise_kind else DEFAULT_ENGINES)
    known = calibration.get_catalog_emulations(tuple(ENGINES)) | get_real_kernels()
    emulations = {name: lookup(known, name, "engine") for name in names}
    if noise_kind:
        lookup(NOISE_KINDS, noise_kind, "noise kind")
        emulations |= calibration.get_noisy_emulations(noise_kind, range(4, 11))
    return emulations


def _build_tables(
    fits: "list[Fit]", measured: "np.ndarray", predicted: "dict[str, np.ndarray]", labels: dict[str, str]
) -> dict[str, list[dict]]:
    """Return the fits, and the quantiles of log rho [n] of the first and the nearest emulation."""
    from dataclasses import asdict

    from simlab.serving.calibration import build_quantile_rows

    first, quantiles = next(iter(predicted)), []
    for name in dict.fromkeys((first, fits[0].emulation)):
        quantiles += build_quantile_rows(measured, predicted[name], **labels, emulation=name)
    rows = [{**labels, **asdict(fit), "reference_system": fit.emulation == first} for fit in fits]
    return {"fits": rows, "quantiles": quantiles}


def _draw(out: Path, config: dict[str, Any], tables: dict[str, list[dict]]) -> None:
    """Write the tables, their manifest and their figure."""
    from simlab.studies.experiment import Experiment, execute

    def run(run) -> None:
        run.configure(**config)
        for name, rows in tables.items():
            run.table(name, rows)

    written = execute(
        Experiment(name="calibrate", question="?", decision_rule="none", minutes=1.0, run=run), out
    )
    figure = import_from_checkout("figures.real_engines")
    if tables["fits"][0]["rms_measured"] <= figure.EXACT:
        typer.echo(f"results: {out}; no figure, since the engines agree", err=True)
        return
    paths = import_from_checkout("figures.style").render(figure.draw_calibration, written, out, "calibration")
    typer.echo(f"results: {out} ({', '.join(path.name for path in paths)})", err=True)
