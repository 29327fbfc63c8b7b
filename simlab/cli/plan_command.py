"""`simlab plan`: memory and time of a training step on real devices."""

from typing import TYPE_CHECKING, Annotated

import typer

from simlab.cli.output import Json, one_clear_error, show

if TYPE_CHECKING:
    from simlab.integrations.resource_plan import Item

EPILOG = "Example: `simlab plan --model Qwen3-30B-A3B --devices 8xH100`, or `--devices 16xTPU-v5p`"

Model = Annotated[
    str, typer.Option(help="Model name, model preset (`simlab list models`) or path of a config.json.")
]
Devices = Annotated[str, typer.Option(help="Number and type of devices, for example 8xH100.")]
Sequences = Annotated[int, typer.Option(help="Sequences per step: prompts times responses per prompt.")]
Prompt = Annotated[int, typer.Option(help="Prompt length, tokens.")]
Response = Annotated[int, typer.Option(help="Response length, tokens.")]
MicroBatch = Annotated[int, typer.Option(help="Micro-batch: sequences per device in one backward pass.")]
Fp8 = Annotated[bool, typer.Option("--fp8", help="FP8 weights in the inference engine.")]
Compute = Annotated[float, typer.Option(help="Fraction of peak FLOP/s that kernels reach.")]
Memory = Annotated[float, typer.Option(help="Fraction of memory bandwidth that kernels reach.")]


def plan(
    model: Model,
    devices: Devices,
    sequences: Sequences = 2048,
    prompt: Prompt = 1024,
    response: Response = 8192,
    micro_batch: MicroBatch = 1,
    fp8: Fp8 = False,
    compute: Compute = 0.4,
    memory: Memory = 0.7,
    json: Json = False,
) -> None:
    """Estimate memory and time of a training step, with the formula of every number."""
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
    if json:
        show([asdict(item) for item in items], True)
        return
    title = f"{model} on {devices}; ≥: a lower bound, without overheads, imbalance and waiting"
    show([_describe(item) for item in items], False, title)


def _describe(item: "Item") -> dict[str, str]:
    from simlab.integrations.resource_plan import AT_LEAST

    return {
        "part": item.part,
        "quantity": item.quantity,
        "value": f"{'≥ ' if item.bound == AT_LEAST else ''}{_amount(item)}",
        "formula": item.formula,
    }


def _amount(item: "Item") -> str:
    """Return value and unit: bytes in the decimal unit that fits, numbers with three digits."""
    if item.unit != "byte":
        return f"{item.value:,.3g} {item.unit}".rstrip() if item.value < 1e6 else f"{item.value:.3g}"
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if item.value >= size:
            return f"{item.value / size:.3g} {unit}"
    return f"{item.value:.3g} byte"
