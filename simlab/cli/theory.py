"""`simlab theory`: the claims that can be decided exactly."""

import typer

from simlab.cli.output import Json, show

EPILOG = "Example: `simlab theory --json > theory.json`"
SHORT = ("claim", "equation", "residual", "tightness", "verdict", "seconds", "found")


def theory(json: Json = False) -> None:
    """Check the papers' identities and bounds on policies small enough to enumerate, in float64.

    JSON adds the statement and the rule of each verdict.
    """
    from simlab.core.progress import track
    from simlab.theory.exact_board import claims
    from simlab.theory.exact_claim import run

    rows = [run(claim) for claim in track(claims(), "theory")]
    show(rows if json else [{key: row[key] for key in SHORT} for row in rows], json, "Exact claims")
    if not json:
        held = sum(row["verdict"] == "holds" for row in rows)
        typer.echo(f"{held} of {len(rows)} hold as printed, in {sum(row['seconds'] for row in rows):.1f} s")
