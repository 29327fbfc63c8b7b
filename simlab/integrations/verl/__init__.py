"""The verl plug-in: what the lab has and verl 0.9 lacks, without a fork and without JAX.

Installed beside verl it is found by the entry point `verl.plugins`; otherwise set
`VERL_USE_EXTERNAL_MODULES=simlab.integrations.verl.plugin`. See docs/verl.md.
"""
