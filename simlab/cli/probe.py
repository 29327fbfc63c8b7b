"""`simlab probe`: measure the mismatch of engine pairs on a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simlab.cli.output import Json, check_out_folder, check_writable, one_clear_error, show
from simlab.core.ranges import COUNT, SEED, Range

if TYPE_CHECKING:
    import numpy as np

    from simlab.models.config import TransformerConfig
    from simlab.models.parameters import Params
    from simlab.serving.protocol import SamplingRequest

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
Checkpoint = Annotated[Path, typer.Argument(help="Hugging Face directory or .gguf file.")]
Sample = Annotated[list[str], typer.Option(help="Sampling engine; repeatable.")]
Score = Annotated[list[str] | None, typer.Option(help="Scoring engine; repeatable.")]
TaskName = Annotated[
    str | None, typer.Option(help="Task of the prompts: a simlab task or reasoning-gym:NAME.")
]
PromptFile = Annotated[
    Path | None, typer.Option(help="File of prompts: one text or JSON list of token ids per line.")
]
Count = Annotated[int, typer.Option(help="Number of prompts of a task.")]
PromptTokens = Annotated[
    int | None, typer.Option(help="Number of last tokens of each prompt (default: length of the shortest).")
]
Length = Annotated[int, typer.Option(help="Maximum response length, tokens.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")]
End = Annotated[int | None, typer.Option(help="End token id (default: that of the checkpoint).")]
Seed = Annotated[int, typer.Option(help="Sampling seed.")]
Out = Annotated[Path, typer.Option(help="Result directory.")]


def probe(
    checkpoint: Checkpoint,
    sample: Sample,
    score: Score = None,
    task: TaskName = None,
    prompts: PromptFile = None,
    count: Count = 64,
    prompt_tokens: PromptTokens = None,
    length: Length = 32,
    temperature: Temperature = 1.0,
    end: End = None,
    seed: Seed = 0,
    out: Out = Path("runs/probe"),
    json: Json = False,
) -> None:
    """Sample with engines, score with engines, and write the mismatch report of every pair.

    Each sampling engine also scores its own samples, to compare decoding with prefill. If an engine fails,
    the command reports and skips it, writes the results of the others, and exits with 1.
    """
    from simlab.checkpoints.checkpoint_reader import load_checkpoint
    from simlab.serving.open_engine import check_name
    from simlab.serving.prompts import read_prompts
    from simlab.serving.protocol import EngineError

    scorers = score or []
    with one_clear_error():
        check_out_folder(out)
        _check_numbers(count, prompt_tokens, length, end, seed, temperature)
        if prompts is not None and not prompts.is_file():
            raise ValueError(f"--prompts must be a file, got {prompts}.")
        for name in (*sample, *scorers):
            check_name(name)
        try:
            config, params = load_checkpoint(checkpoint)
            rows = read_prompts(checkpoint, config, task, prompts, count, prompt_tokens)
        except EngineError as error:
            raise ValueError(error) from error
        sampling = _build_request(checkpoint, config, length, temperature, end, seed)
        check_writable(out)
        settings = {"checkpoint": str(checkpoint), "sample": sample, "score": scorers, "task": task}
        tables = _measure(out, settings, config, params, rows, sampling)
    _show_pairs(out, tables, json, f"Engine pairs on {checkpoint}")


def _check_numbers(
    count: int, prompt_tokens: int | None, length: int, end: int | None, seed: int, temperature: float
) -> None:
    from simlab.serving.protocol import check_temperature

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


def _build_request(
    checkpoint: Path,
    config: "TransformerConfig",
    length: int,
    temperature: float,
    end: int | None,
    seed: int,
) -> "SamplingRequest":
    from simlab.serving.prompts import find_eos_token_id
    from simlab.serving.protocol import SamplingRequest

    if end is not None and end >= config.vocab_size:
        raise ValueError(
            f"--end must be at least 0 and below {config.vocab_size}, the vocabulary size of "
            f"{checkpoint}, got {end}."
        )
    eos = find_eos_token_id(checkpoint, config) if end is None else end
    return SamplingRequest(
        max_tokens=length, eos_token_id=eos, pad_token_id=eos, temperature=temperature, seed=seed
    )


def _measure(
    out: Path,
    settings: dict[str, Any],
    config: "TransformerConfig",
    params: "Params",
    prompts: "np.ndarray",
    sampling: "SamplingRequest",
) -> list[str]:
    """Write the tables of the probe of `prompts` [N, P]; return the names of all tables in `out`."""
    from simlab.serving.engine_probe import Probe
    from simlab.studies.experiment import Experiment, execute

    def run(run) -> None:
        run.seeds([sampling.seed])
        run.configure(**settings, prompts=len(prompts), prompt_tokens=prompts.shape[1])
        run.configure(length=sampling.max_tokens, temperature=sampling.temperature)
        Probe(run).measure(config, params, prompts, settings["sample"], settings["score"], sampling)

    written = execute(Experiment(name="probe", question="?", decision_rule="none", minutes=1.0, run=run), out)
    return sorted(written.manifest["tables"])


def _show_pairs(out: Path, tables: list[str], json: bool, title: str) -> None:
    """Print the pairs and the tables; exit with 1 if an engine failed."""
    import pyarrow.parquet as pq

    # The folder may also hold tables of other commands.
    if "pairs" in tables:
        show(pq.read_table(out / "pairs.parquet", columns=COLUMNS).to_pylist(), json, title)
    typer.echo(f"results: {out} ({', '.join(tables)})", err=True)
    if "failures" in tables:
        raise typer.Exit(1)
