"""Sweeps: grids of runs, compiled once per static signature. They resume, and compute each run once."""

from simlab.sweeps.config import RunConfig, recipe_of, run_config, run_key
from simlab.sweeps.grids import Grid, grid, listed, sampled
from simlab.sweeps.result import SweepResult, load
from simlab.sweeps.sweep import sweep

__all__ = [
    "Grid",
    "RunConfig",
    "SweepResult",
    "grid",
    "listed",
    "load",
    "recipe_of",
    "run_config",
    "run_key",
    "sampled",
    "sweep",
]
