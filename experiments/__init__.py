"""The experiments: one file each, one row here (name -> module with an `EXPERIMENT`)."""

EXPERIMENTS: dict[str, str] = {}
