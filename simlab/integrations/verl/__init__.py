"""The verl plug-in: objectives, corrections, schedules and dumps that verl 0.9 lacks, without a fork or JAX.

verl finds an installed simlab by the entry point `verl.plugins`; otherwise set
`VERL_USE_EXTERNAL_MODULES=simlab.integrations.verl.plugin`. See docs/verl.md.
"""
