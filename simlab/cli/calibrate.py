"""`simlab calibrate`: which emulated engine predicts a measured pair."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import Json, one_clear_error, show

EPILOG = (
    "Example: `simlab calibrate runs/probe policy --sampler vllm:bfloat16 --scorer transformers:float32 "
    "--engine bf16 --engine vllm-bf16 --dose truncated`"
)

ENGINES_HELP = (
    "An emulated sampler of `simlab list engines`, or `q8_0`, `q4_0`, `bf16-fp8kv truncated`; repeatable."
)


def calibrate(
    results: Annotated[Path, typer.Argument(help="Folder of a finished `simlab probe`.")],
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint that was probed.")],
    sampler: Annotated[str, typer.Option(help="The engine that sampled.")],
    scorer: Annotated[str, typer.Option(help="The engine that scored.")],
    engine: Annotated[list[str] | None, typer.Option(help=ENGINES_HELP)] = None,
    dose: Annotated[
        str | None, typer.Option(help="A dose to try at 4 to 10 bits; `simlab list doses`.")
    ] = None,
    train: Annotated[str, typer.Option(help="The emulated scorer.")] = "f32",
    json: Json = False,
) -> None:
    """Compare the distribution of log rho of emulated engines with a measured one, by probability bin.

    Distance 0 is a perfect prediction, 1 as bad as none at all.
    """
    from dataclasses import asdict

    from simlab.core.catalog import lookup
    from simlab.core.results import Results
    from simlab.engines import ENGINES, find_engine
    from simlab.engines.dose import DOSES
    from simlab.harness import calibration
    from simlab.harness.emulations import real_kernels
    from simlab.harness.reading import load_checkpoint

    with one_clear_error():
        names = tuple(engine or ([] if dose else ["bf16", "vllm-bf16", "fp16", "bf16-fp8kv", "int8-w8a8"]))
        known = calibration.catalog_emulations(tuple(ENGINES)) | real_kernels()
        emulations = {name: lookup(known, name, "engine") for name in names}
        if dose:
            lookup(DOSES, dose, "dose")
            emulations |= calibration.dosed_emulations(dose, range(4, 11))
        scoring = find_engine(train)
        found = Results(results)
        prompts, responses, *measured = calibration.measured_pair(
            found.table("tokens"), found.table("samples"), sampler, scorer
        )
        config, params = load_checkpoint(checkpoint)

    def predict(infer):
        return calibration.predicted_log_rho(params, config, scoring, infer, prompts, responses)

    mask, logp_train, logp_infer = measured
    fits = calibration.calibrate(logp_train, logp_infer, mask, predict, emulations)
    show([asdict(fit) for fit in fits], json, f"{sampler} / {scorer} on {checkpoint}")
