"""Map the papers' figures and tables to rows of the catalog; print the table of `docs/figures.md`."""

from figures.catalog import FIGURES
from figures.heading import list_cited

NOT_DRAWN = {
    "hacking Fig. 11": "a sketch without data; `hacking_fig5` and "
    "`hacking_fig12` measure what it distinguishes",
}
NAMES = {row.paper: name for name, row in FIGURES.items() if row.paper}
"""Maps a paper's figure, such as `hacking Fig. 2`, to our name of it."""

HEAD = "| paper | our figure | experiment | what it shows |\n|---|---|---|---|"


def find_cited(paper: str, where: str) -> list[str]:
    """Return our figures of the figures and tables in `where`, which reads like `Fig. 3, 9b, Tab. 1-2`."""
    return [NAMES[item] for item in list_cited(paper, where) if item in NAMES]


def build_table() -> str:
    """Return the table of `docs/figures.md`."""
    rows = [
        f"| {row.paper} | `{name}` | `{row.experiment}` | {row.title} |"
        for name, row in FIGURES.items()
        if row.paper
    ]
    absent = [f"| {item} | - | | not drawn: {reason} |" for item, reason in NOT_DRAWN.items()]
    return "\n".join([HEAD, *rows, *absent])


if __name__ == "__main__":
    print(build_table())
