"""Every figure that the lab owes a paper is drawn, or it is said why not."""

from pathlib import Path

from figures import FIGURES
from figures.papers import NOT_DRAWN, OTHER_NAMES, WANTED, item_of, name_of, named, table

ROOT = Path(__file__).resolve().parents[2]
ITEMS = [f"{paper} {item}" for paper, items in WANTED.items() for item in items]


def test_every_item_has_a_figure_or_a_reason():
    assert {item for item in ITEMS if name_of(item) is None} == set(NOT_DRAWN)
    assert set(OTHER_NAMES) <= set(ITEMS)


def test_every_figure_of_a_paper_is_an_item():
    named = {name for name in FIGURES if name.partition("_")[0] in WANTED}
    assert named == {name_of(item) for item in ITEMS} - {None} - set(OTHER_NAMES.values())


def test_the_page_holds_the_table():
    assert table() in (ROOT / "docs" / "figures.md").read_text(), "python -m figures.papers prints it"


def test_a_claim_finds_the_figures_that_its_place_names():
    assert named("hacking", "Fig. 4, Tab. 1") == ["hacking_fig4", "hacking_tab1"]
    assert named("hacking", "Fig. 3b, App. C.1") == ["hacking_fig3"]
    assert named("lr", "Fig. 6-10, Alg. 1") == [f"lr_fig{n}" for n in range(6, 11)]
    assert named("hacking", "Tab. 2, Eq. 44-45") == ["softmax_placements"]
    assert named("tensor cores", "Fig. 1") == named("lr", "3.1") == []
    assert item_of("softmax_levels") == "hacking Fig. 13"
    assert item_of("leaderboard") == ""
