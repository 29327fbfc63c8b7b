"""Scripts that run in the environment of another framework; they import nothing of simlab."""
