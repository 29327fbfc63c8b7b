"""The flagship: a strong dose of mismatch, uncorrected, with TIS, under GSPO, and the BF16 control."""

from experiments.flagship_sweep import CHUNK, SMOKE, record
from simlab.core.experiment import Experiment, Run
from simlab.core.paths import shop_root
from simlab.sweeps import grid
from simlab.sweeps.file import read_file
from simlab.sweeps.grids import Grid

STEPS = 600
WARM_STARTS = ("add-tiny-llama-0", "add-tiny-llama-2")
WIDTH = 4


def run(run: Run) -> None:
    described = read_file(shop_root() / "examples" / "flagship.toml")
    base, points = {**described.base, "steps": STEPS}, described.grid * grid({"warm_start": WARM_STARTS})
    if run.smoke:
        base, points = {**described.base, **SMOKE, "steps": CHUNK}, Grid(described.grid.points[::4])
    record(run, base, points, WIDTH)


EXPERIMENT = Experiment(
    name="flagship",
    question="Does mismatch alone make a healthy run decline, and do TIS and sequence ratios prevent it?",
    decision_rule=(
        "Rise and decline: without correction the mean reward of the last 40 steps lies below that of the "
        "best 40 in a row by more than twice the standard error over runs, and for TIS, GSPO and the BF16 "
        "control it does not. Survival bias: without correction mean rho at pi_train < 0.01 is below 1 in "
        "every run and lower in the last 100 steps than in the first 100."
    ),
    minutes=25.0,
    claims=("H4", "H7", "L3", "V3"),
    figures=("flagship",),
    run=run,
)
