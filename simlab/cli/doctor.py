"""`simlab doctor`: device, versions and numerical pitfalls of this machine."""

import os
from dataclasses import asdict

from simlab.cli.output import Json, print_json, show

EPILOG = "Example: `simlab doctor --json > doctor.json`"


def doctor(json: Json = False) -> None:
    """Print device, versions and XLA flags, and test which numerical pitfalls of XLA affect this machine."""
    from simlab.core.manifest import device, versions
    from simlab.core.xla_pitfalls import check_pitfalls

    facts = {"device": device(), "versions": versions(), "xla_flags": os.environ.get("XLA_FLAGS", "")}
    pitfalls = [asdict(pitfall) for pitfall in check_pitfalls()]
    if json:
        print_json({**facts, "pitfalls": pitfalls})
        return
    rows = [
        {"fact": f"{group} {name}", "value": str(value)}
        for group in ("device", "versions")
        for name, value in facts[group].items()
    ]
    show([*rows, {"fact": "XLA_FLAGS", "value": facts["xla_flags"] or "(none)"}], False, "This machine")
    show(pitfalls, False, "XLA pitfalls for emulated formats; simlab works around those that are present")
