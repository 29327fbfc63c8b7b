"""`simlab demo`: reward against mantissa bits of the inference engine, in a minute on a laptop."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import one_clear_error, show

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
    smooth = max(steps // 10, 1)
    figure = result.curves(("rms_log_rho", "reward"), by="infer_mantissa_bits", smooth=smooth)
    mismatch, reward = figure.axes
    mismatch.set(title="Mismatch between the engines", ylabel="RMS log rho (nats)", yscale="log")
    # Between the curves of 4 and of 21 bits, where nothing is drawn.
    mismatch.legend(title="mantissa bits", loc="center", ncols=2, frameon=False, fontsize="small")
    reward.set(title="Reward of the policy")
    figure.savefig(out / "demo.png", dpi=150)
    typer.echo(
        "Fewer mantissa bits: a larger mismatch between the engines, and less reward. "
        f"Curves (moving means over {smooth} step{'s' * (smooth > 1)}): {out / 'demo.png'}\n"
        "Next: simlab sweep examples/first_sweep.toml, simlab claims, simlab list notebooks"
    )
