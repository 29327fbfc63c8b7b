"""Ways into other systems: the verl plug-in, exports to verl and Slurm, plans of memory and time."""
