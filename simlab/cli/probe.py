"""`simlab probe`: measure the mismatch of engine pairs on a checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import Json, check_out_folder, check_writable, one_clear_error, show
from simlab.core.ranges import COUNT, SEED, Range

EPILOG = (
    "Example: `simlab probe policy --task add --sample vllm:bfloat16+fp8 --score transformers:float32`. "
    "Engines: any of `simlab list engines`, `vllm:DTYPE`, `vllm:DTYPE+KV`, `transformers:DTYPE`, or the URL "
    "of a server."
)

COLUMNS = [
    "sampling_engine",
    "scoring_engine",
    "tokens",
    "std_rho",
    "rms_log_rho",
    "discrepancy",
    "max_rho",
    "router_flips",
]


def probe(
    checkpoint: Annotated[Path, typer.Argument(help="Hugging Face directory or .gguf file.")],
    sample: Annotated[list[str], typer.Option(help="Sampling engine; repeatable.")],
    score: Annotated[list[str] | None, typer.Option(help="Scoring engine; repeatable.")] = None,
    task: Annotated[
        str | None, typer.Option(help="Task for the prompts: a simlab task or reasoning-gym:NAME.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="File of prompts: one text or JSON list of token ids per line.")
    ] = None,
    count: Annotated[int, typer.Option(help="Number of prompts of a task.")] = 64,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(help="Number of last tokens of each prompt; default: length of the shortest."),
    ] = None,
    length: Annotated[int, typer.Option(help="Maximum response length, tokens.")] = 32,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 1.0,
    end: Annotated[int | None, typer.Option(help="End token id; default: that of the checkpoint.")] = None,
    seed: Annotated[int, typer.Option(help="Sampling seed.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory of tables and manifest.")] = Path("runs/probe"),
    json: Json = False,
) -> None:
    """Sample with engines, score with engines, and write the mismatch report of every pair.

    Each sampling engine also scores its own samples: decoding against prefill. A failing engine is reported
    and skipped; the exit status is then 1, and the results of the others are written.
    """
    import pyarrow.parquet as pq

    from simlab.checkpoints.checkpoint_reader import load_checkpoint
    from simlab.core.experiment import Experiment, execute
    from simlab.serving.engine_probe import Probe
    from simlab.serving.open_engine import check_name
    from simlab.serving.prompts import find_eos_token_id, read_prompts
    from simlab.serving.protocol import EngineError, SamplingRequest, check_temperature

    with one_clear_error():
        check_out_folder(out)
        for name, number in (("--count", count), ("--prompt-tokens", prompt_tokens), ("--length", length)):
            if number is not None:
                COUNT.check(number, name)
        if end is not None:
            Range(low=0).check(end, "--end")
        SEED.check(seed, "--seed")
        try:
            check_temperature(temperature)
        except ValueError as error:
            raise ValueError(f"--{error}") from error
        if prompts is not None and not prompts.is_file():
            raise ValueError(f"--prompts must be a file, got {prompts}.")
        for name in (*sample, *(score or [])):
            check_name(name)
        try:
            config, params = load_checkpoint(checkpoint)
            rows = read_prompts(checkpoint, config, task, prompts, count, prompt_tokens)
        except EngineError as error:
            raise ValueError(error) from error
        if end is not None and end >= config.vocab_size:
            raise ValueError(
                f"--end must be at least 0 and below {config.vocab_size}, the vocabulary size of "
                f"{checkpoint}, got {end}."
            )
        eos = find_eos_token_id(checkpoint, config) if end is None else end
        sampling = SamplingRequest(
            max_tokens=length, eos_token_id=eos, pad_token_id=eos, temperature=temperature, seed=seed
        )

        check_writable(out)

        def run(run) -> None:
            run.seeds([seed])
            run.configure(checkpoint=str(checkpoint), sample=sample, score=score or [], task=task)
            run.configure(
                prompts=len(rows), prompt_tokens=rows.shape[1], length=length, temperature=temperature
            )
            Probe(run).measure(config, params, rows, sample, score or [], sampling)

        written = execute(
            Experiment(name="probe", question="?", decision_rule="none", minutes=1.0, run=run), out
        )
    # The folder may also hold tables of other commands.
    tables = sorted(written.manifest["tables"])
    if "pairs" in tables:
        pairs = pq.read_table(out / "pairs.parquet", columns=COLUMNS).to_pylist()
        show(pairs, json, f"Engine pairs on {checkpoint}")
    typer.echo(f"results: {out} ({', '.join(tables)})", err=True)
    if "failures" in tables:
        raise typer.Exit(1)
