"""`simlab probe`: how far engines are apart on a checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import Json, one_clear_error, show

EPILOG = (
    "Example: `simlab probe policy --task add --sample vllm:bfloat16+fp8 --score transformers:float32`. "
    "Engines: any of `simlab list engines`, `vllm:DTYPE`, `vllm:DTYPE+KV`, `transformers:DTYPE`, or the URL "
    "of a server."
)

COLUMNS = ["sampler", "scorer", "tokens", "std_rho", "rms_log_rho", "discrepancy", "max_rho", "router_flips"]


def probe(
    checkpoint: Annotated[Path, typer.Argument(help="A Hugging Face folder or a .gguf file.")],
    sample: Annotated[list[str], typer.Option(help="An engine that samples; can be repeated.")],
    score: Annotated[
        list[str] | None, typer.Option(help="An engine that scores what each sampled; can be repeated.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="A task of the lab, or reasoning-gym:NAME, for the prompts.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="File of prompts: a text or a JSON list of token ids per line.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many prompts of a task.")] = 64,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(help="Last tokens of each prompt that are kept; default: of the shortest, all."),
    ] = None,
    length: Annotated[int, typer.Option(help="Longest response.")] = 32,
    temperature: Annotated[float, typer.Option(help="Temperature of sampling.")] = 1.0,
    end: Annotated[int | None, typer.Option(help="End token; default: that of the checkpoint.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of tables and manifest.")] = Path("runs/probe"),
    json: Json = False,
) -> None:
    """Let engines sample and score, and write the mismatch report of every pair.

    Every sampling engine also scores its own samples: decoding against prefill. An engine that fails is
    reported and left out; the exit status is then 1, and what the others measured is kept.
    """
    import pyarrow.parquet as pq

    from simlab.checkpoints.checkpoint_reader import load_checkpoint
    from simlab.core.experiment import Experiment, execute
    from simlab.serving.engine_probe import Probe
    from simlab.serving.probe_input import end_token, read_prompts
    from simlab.serving.protocol import EngineError, Sampling

    with one_clear_error():
        try:
            config, params = load_checkpoint(checkpoint)
            rows = read_prompts(checkpoint, config, task, prompts, count, prompt_tokens)
        except EngineError as error:
            raise ValueError(error) from error
        ends = end_token(checkpoint, config) if end is None else end
        sampling = Sampling(length=length, end=ends, pad=ends, temperature=temperature, seed=seed)

        def run(run) -> None:
            run.seeds([seed])
            run.configure(checkpoint=str(checkpoint), sample=sample, score=score or [], task=task)
            run.configure(
                prompts=len(rows), prompt_tokens=rows.shape[1], length=length, temperature=temperature
            )
            Probe(run).measure(config, params, rows, sample, score or [], sampling)

        found = execute(
            Experiment(name="probe", question="?", decision_rule="none", minutes=1.0, run=run), out
        )
    if "pairs" in found.table_names:
        pairs = pq.read_table(out / "pairs.parquet", columns=COLUMNS).to_pylist()
        show(pairs, json, f"Engine pairs on {checkpoint}")
    typer.echo(f"results: {out} ({', '.join(found.table_names)})", err=True)
    if "failures" in found.table_names:
        raise typer.Exit(1)
