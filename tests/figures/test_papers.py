"""Every figure that the lab owes a paper is drawn, or a reason is given."""

from figures.catalog import FIGURES, NAMES, find_cited
from figures.papers import DIFFERS, NOT_DRAWN

WANTED: dict[str, tuple[str, ...]] = {
    "hacking": (*(f"Fig. {n}" for n in range(2, 18)), "Tab. 1", "Tab. 2"),
    "lr": tuple(f"Fig. {n}" for n in range(1, 14)),
    "acrl": (
        "Fig. 6",
        *(f"Fig. {n}" for n in range(8, 12)),
        *(f"Tab. {n}" for n in (*range(1, 10), 12, 13)),
    ),
    "cancel": ("Fig. 2", *(f"Tab. {n}" for n in range(1, 5))),
}
"""The measured figures and tables of each paper, without sketches and tables of settings."""
ITEMS = [f"{paper} {item}" for paper, items in WANTED.items() for item in items]


def test_papers_every_item_has_a_figure_or_a_reason():
    assert set(ITEMS) == set(NAMES) | set(NOT_DRAWN)
    assert not set(NAMES) & set(NOT_DRAWN)


def test_papers_no_two_figures_claim_one_item():
    assert len(NAMES) == sum(bool(row.paper) for row in FIGURES.values())


def test_captions_name_what_the_paper_has_and_we_lack():
    assert set(DIFFERS) <= set(NAMES)
    assert "Differs from the paper: token TIS, no correction" in FIGURES["hacking_fig3"].caption


def test_find_cited_adds_figures_about_a_claim():
    assert find_cited("vexact", "review", "V3") == [
        *("vexact_doses", "vexact_kinds", "vexact_matched", "vexact_larger", "vexact_weights")
    ]
    assert find_cited("acrl", "Fig. 9, 10", "A1") == ["acrl_fig9", "acrl_fig10", "e4m3_moe_curves"]


def test_find_cited_reads_lists_and_ranges():
    assert find_cited("hacking", "Fig. 4, Tab. 1") == ["hacking_fig4", "hacking_tab1"]
    assert find_cited("hacking", "Fig. 3b, App. C.1") == ["hacking_fig3"]
    assert find_cited("lr", "Fig. 6-10, Alg. 1") == [f"lr_fig{n}" for n in range(6, 11)]
    assert find_cited("hacking", "Tab. 2, Eq. 44-45") == ["softmax_placements"]
    assert find_cited("tensor cores", "Fig. 1") == find_cited("lr", "3.1") == []
