"""`simlab theory`: check identities and bounds exactly."""

import typer

from simlab.cli.output import Json, show

EPILOG = "Example: `simlab theory --json > theory.json`"
SHORT = ("claim", "equation", "residual", "tightness", "verdict", "seconds", "found")


def theory(json: Json = False) -> None:
    """Check the identities and bounds of the papers on enumerable policies in float64.

    --json adds the statement and the rule of each verdict.
    """
    from simlab.core.progress import track
    from simlab.studies.exact import compute_row, exact_checks
    from simlab.studies.loading import load_claims

    rows = [compute_row(*check) for check in track(exact_checks(load_claims()), "theory")]
    show(rows if json else [{key: row[key] for key in SHORT} for row in rows], json, "Exact claims")
    if not json:
        holding = sum(row["verdict"] == "holds" for row in rows)
        typer.echo(
            f"{holding} of {len(rows)} hold as printed, in {sum(row['seconds'] for row in rows):.1f} s"
        )
