"""`simlab plan`: memory and time of a training step on real devices."""

from typing import Annotated

import typer

from simlab.cli.output import Json, one_clear_error, show

EPILOG = "Example: `simlab plan --model Qwen3-30B-A3B --devices 8xH100`, or `--devices 16xTPU-v5p`"


def plan(
    model: Annotated[str, typer.Option(help="A real model or a preset; a wrong name lists them.")],
    devices: Annotated[str, typer.Option(help="How many of which, as 8xH100.")],
    sequences: Annotated[int, typer.Option(help="Sequences of a step: prompts times group.")] = 512,
    prompt: Annotated[int, typer.Option(help="Tokens of a prompt.")] = 1024,
    response: Annotated[int, typer.Option(help="Tokens of a response.")] = 8192,
    micro_batch: Annotated[int, typer.Option(help="Sequences that a device trains on at once.")] = 1,
    fp8: Annotated[bool, typer.Option("--fp8", help="The sampling engine holds weights in FP8.")] = False,
    compute: Annotated[float, typer.Option(help="Fraction of peak FLOP/s that kernels reach.")] = 0.4,
    memory: Annotated[float, typer.Option(help="Fraction of memory bandwidth that they reach.")] = 0.7,
    json: Json = False,
) -> None:
    """Print what a step costs, every number with its formula."""
    from dataclasses import asdict

    from simlab.integrations.resource_plan import Step
    from simlab.integrations.resource_plan import plan as compute_plan

    with one_clear_error():
        step = Step(
            sequences=sequences,
            prompt=prompt,
            response=response,
            micro_batch=micro_batch,
            weight_bytes=1 if fp8 else 2,
            compute=compute,
            memory=memory,
        )
        items = compute_plan(model, devices, step)
    show([asdict(item) for item in items], json, f"{model} on {devices}")
