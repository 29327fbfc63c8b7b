"""`simlab doctor`: what this machine does to your bits."""

import os

import typer

from simlab.cli.output import Json, show

EPILOG = "Example: `simlab doctor --json > doctor.json`"


def doctor(json: Json = False) -> None:
    """Print device, versions and XLA flags, and test which numerical traps of XLA hold here."""
    import json as json_module

    from simlab.core.manifest import device, versions
    from simlab.core.traps import check_traps

    facts = {"device": device(), "versions": versions(), "xla_flags": os.environ.get("XLA_FLAGS", "")}
    traps = [trap.as_row() for trap in check_traps()]
    if json:
        typer.echo(json_module.dumps({**facts, "traps": traps}, indent=2))
        return
    rows = [
        {"fact": f"{group} {name}", "value": str(value)}
        for group in ("device", "versions")
        for name, value in facts[group].items()
    ]
    show([*rows, {"fact": "XLA_FLAGS", "value": facts["xla_flags"] or "(none)"}], False, "This machine")
    show(traps, False, "Traps of XLA for emulated formats (a trap that holds is one the lab works around)")
