"""Every figure that simlab owes a paper is drawn, or a reason is given."""

from figures.catalog import FIGURES, NAMES, figures_about
from figures.papers import DIFFERS, NOT_DRAWN
from simlab.studies.board import board

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


def test_figures_about_a_claim_come_from_any_experiment():
    assert figures_about("V3") == [
        *("vexact_doses", "vexact_kinds", "vexact_matched", "vexact_larger", "vexact_weights"),
        "vexact_survival",
    ]
    assert figures_about("A1") == ["acrl_fig9", "acrl_fig10", "e4m3_moe_curves"]
    assert figures_about("H99") == []


def test_figures_are_about_claims_that_exist():
    known = {row.claim.id for row in board().rows}
    assert {claim for row in FIGURES.values() for claim in row.claims} <= known


def test_every_figure_of_a_paper_is_about_a_claim():
    assert [row.paper for row in FIGURES.values() if row.paper and not row.claims] == []
