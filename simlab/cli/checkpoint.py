"""`simlab checkpoint`: save policies as Hugging Face checkpoints and inspect checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import Json, one_clear_error, show

app = typer.Typer(
    no_args_is_help=True,
    help="Save a policy as a Hugging Face checkpoint, or inspect a checkpoint.",
    epilog="Example: `simlab checkpoint inspect policy`",
)


@app.command(epilog="Example: `simlab checkpoint save policy.npz tiny-moe --out policy --dtype bfloat16`")
def save(
    parameters: Annotated[Path, typer.Argument(help="Parameters of simlab (.npz).")],
    model: Annotated[str, typer.Argument(help="Model preset of the parameters.")],
    out: Annotated[Path, typer.Option(help="Checkpoint directory.")],
    dtype: Annotated[
        str, typer.Option(help="Format of the weights: float32, bfloat16 or float16; w8a8 for vLLM.")
    ] = "float32",
) -> None:
    """Write a checkpoint with a tokenizer for transformers and vLLM."""
    from simlab.checkpoints import save_checkpoint
    from simlab.core.catalog import lookup
    from simlab.models.config import MODELS
    from simlab.models.parameters import shapes_of
    from simlab.training.checkpoints import load_tree

    with one_clear_error():
        if not parameters.is_file():
            raise FileNotFoundError(
                f"PARAMETERS must be an .npz file, got {parameters}, which does not exist"
            )
        config = lookup(MODELS, model, "model")
        save_checkpoint(out, config, load_tree(parameters, shapes_of(config)), dtype=dtype)
    typer.echo(out)


@app.command(epilog="Example: `simlab checkpoint inspect policy --tensors`")
def inspect(
    path: Annotated[Path, typer.Argument(help="Hugging Face directory or .gguf file.")],
    tensors: Annotated[
        bool, typer.Option("--tensors", help="Table of the tensors instead of the config.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a checkpoint without reading its weights, and print its config or its tensors."""
    from dataclasses import asdict
    from math import prod

    from simlab.checkpoints import open_checkpoint

    with one_clear_error():
        try:
            source = open_checkpoint(path)
        except ImportError as error:
            raise ValueError(error) from error
    rows = [
        {"name": name, "stored": tensor.dtype, "shape": list(tensor.shape), "file": tensor.file.name}
        for name, tensor in source.tensors.items()
    ]
    if tensors:
        show(rows, json, f"Tensors of {path}")
        return
    facts = {
        **asdict(source.config),
        "parameters": sum(prod(row["shape"]) for row in rows),
        "stored": ", ".join(sorted({row["stored"] for row in rows})),
    }
    show([{"field": name, "value": value} for name, value in facts.items()], json, f"Checkpoint {path}")
