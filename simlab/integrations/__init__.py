"""Integrate with other systems: the verl plug-in, exports to verl and Slurm, resource plans."""
