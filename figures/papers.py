"""Map the papers' figures and tables to rows of the catalog; print the table of `docs/figures.md`."""

import re

from figures.catalog import FIGURES

WANTED: dict[str, tuple[str, ...]] = {
    "hacking": (*(f"Fig. {n}" for n in range(2, 18)), "Tab. 1", "Tab. 2"),
    "lr": tuple(f"Fig. {n}" for n in range(1, 14)),
    "acrl": (
        "Fig. 6",
        *(f"Fig. {n}" for n in range(8, 12)),
        *(f"Tab. {n}" for n in (1, 2, 4, 5, 6, 7, 8, 9)),
    ),
    "cancel": ("Fig. 2", *(f"Tab. {n}" for n in range(1, 5))),
}
"""The measured figures and tables of each paper, without sketches and tables of settings."""

NOT_DRAWN = {
    "hacking Fig. 11": "a sketch without data; what it tells apart is measured in `hacking_fig5` and "
    "`hacking_fig12`",
}
NAMES = {row.paper: name for name, row in FIGURES.items() if row.paper}
"""Maps a paper's figure, such as `hacking Fig. 2`, to our name of it."""

HEAD = "| paper | our figure | experiment | what it shows |\n|---|---|---|---|"


def find_cited(paper: str, where: str) -> list[str]:
    """Return our figures of the figures and tables in `where`, which reads like `Fig. 3, 9b, Tab. 1-2`."""
    numbers = re.findall(r"(Fig|Tab)\. (\d+[a-z]?(?:(?:-|, )\d+[a-z]?)*)", where)
    found = []
    for kind, listed in numbers:
        for part in re.sub("[a-z]", "", listed).split(", "):
            first, _, last = part.partition("-")
            found += [NAMES.get(f"{paper} {kind}. {n}") for n in range(int(first), int(last or first) + 1)]
    return [name for name in found if name]


def build_table() -> str:
    """Return the table of `docs/figures.md`."""
    items = (f"{paper} {item}" for paper, listed in WANTED.items() for item in listed)
    return "\n".join([HEAD, *map(_build_row, items)])


def _build_row(item: str) -> str:
    if item not in NAMES:
        return f"| {item} | - | | not drawn: {NOT_DRAWN[item]} |"
    row = FIGURES[NAMES[item]]
    return f"| {item} | `{NAMES[item]}` | `{row.experiment}` | {row.title} |"


if __name__ == "__main__":
    print(build_table())
