"""`simlab demo`: reward against mantissa bits of the inference engine, in a minute on a laptop."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simlab.cli.output import one_clear_error, show

if TYPE_CHECKING:
    import pandas as pd

EPILOG = "Example: `simlab demo`, then open runs/demo/demo.png."

BASE = {
    "task": "add",
    "warm_start": "add-tiny-llama-0",
    "engines": "f32/f32",
    "infer_rounding": "toward_zero",
}
BITS = (1, 2, 4, 21)
"""Mantissa bits of the projections while sampling; with 21 the two engines agree to 6 digits."""


def demo(
    steps: Annotated[int, typer.Option(min=4, help="Training steps of each run.")] = 40,
    out: Annotated[Path, typer.Option(help="Result directory of the sweep and of demo.png.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train one policy under four inference precisions and show how the mismatch changes its reward.

    Training computes in float32. Inference keeps 1, 2, 4 or 21 mantissa bits of both operands of
    each projection, truncated. All runs share one compiled function, because precision is data.
    """
    from simlab.sweeps import sweep

    typer.echo("Expected: under 60 s on two free cores, most of it to compile.", err=True)
    with one_clear_error():
        result = sweep(
            BASE | {"steps": steps},
            {"infer_mantissa_bits": BITS, "seed": [0]},
            out,
            name="demo",
            runs_per_batch=len(BITS),
            workers=0,
            yes=True,
        )
    frame = result.frame(["infer_mantissa_bits"])
    late = frame.query(f"step >= {3 * steps // 4}").pivot_table(
        ["reward", "rms_log_rho"], "infer_mantissa_bits"
    )
    rows = [
        {"mantissa bits": bits, "RMS log rho (nats)": round(mismatch, 4), "reward": round(reward, 3)}
        for bits, reward, mismatch in late[["reward", "rms_log_rho"]].itertuples()
    ]
    show(rows, False, f"Mean over the last quarter of {steps} steps; one initial policy, one seed")
    picture = draw(frame, out / "demo.png")
    typer.echo(
        f"Fewer mantissa bits: a larger mismatch between the engines, and less reward. Curves: {picture}\n"
        "Next: simlab sweep examples/first_sweep.toml, simlab claims, simlab list notebooks"
    )


def draw(frame: "pd.DataFrame", path: Path) -> Path:
    """Draw mismatch and reward over the steps, a curve per number of mantissa bits."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.8), layout="constrained")
    axes = figure.subplots(1, 2)
    for count, curve in frame.groupby("infer_mantissa_bits"):
        smooth = curve.set_index("step")[["rms_log_rho", "reward"]].rolling(5, min_periods=1).mean()
        for axis, metric in zip(axes, ("rms_log_rho", "reward"), strict=True):
            axis.plot(smooth[metric], label=str(count))
    axes[0].set(
        title="Mismatch between the engines", xlabel="step", ylabel="RMS log rho (nats)", yscale="log"
    )
    axes[1].set(title="Reward of the policy", xlabel="step", ylabel="reward")
    figure.legend(
        *axes[0].get_legend_handles_labels(), title="mantissa bits", loc="outside right upper", frameon=False
    )
    figure.savefig(path, dpi=150)
    return path
