"""Convert a simlab config into a launch script, and a verl config into a simlab config."""

from simlab.integrations.export.slurm import slurm_script
from simlab.integrations.export.verl_config import Nearest, nearest_config, to_toml
from simlab.integrations.export.verl_run import BACKENDS, VerlRun, verl_run, verl_script

__all__ = [
    "BACKENDS",
    "Nearest",
    "VerlRun",
    "nearest_config",
    "slurm_script",
    "to_toml",
    "verl_run",
    "verl_script",
]
