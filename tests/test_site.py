"""The parts of the documentation site; `make docs` builds it and checks every link."""

import json
import re

import nbformat
import numpy as np
import pytest

from scripts.site.build import ROOT, TEX, configuration, with_formulas, with_spaced_lists
from scripts.site.claims import claim_pages
from scripts.site.formulas import FORMULAS
from scripts.site.links import broken_links, rewrite_links
from scripts.site.notebooks import page
from scripts.site.reference import doc_text, reference_pages
from simlab.studies import Measured
from simlab.studies import estimands as m
from simlab.studies.arms import Arm
from simlab.studies.board import Board, Row
from simlab.studies.contrasts import minus
from simlab.studies.records import Claim, Regime, Trial, primary
from simlab.studies.samples import mean_of_policies
from simlab.studies.verdicts import decide_family

RULE = primary(m.REWARD, minus(Arm("a"), Arm("b")), "positive", 0.2, because="a\nreason")
TRIAL = Trial("runs", (RULE,), Regime("R", "nats"), note="a | note")
CLAIM = Claim("H1", "hacking", "A | statement", "Tab. 2", "dynamics", (TRIAL,))


def test_rewrite_links_leads_to_the_site_and_drops_links_to_code(tmp_path):
    places = {tmp_path / "docs" / "b.md": "deep/b.md", tmp_path / "x.png": "figures/x.png"}
    text = "[b](b.md#part) ![x](../x.png) [code](../simlab/a.py) [web](https://a.b/c) [here](#top)\n"
    fenced = "```python\n[b](b.md)\n```"
    found = rewrite_links(text + fenced, tmp_path / "docs" / "a.md", "claims/a.md", places)
    assert found == (
        "[b](../deep/b.md#part) ![x](../figures/x.png) code [web](https://a.b/c) [here](#top)\n" + fenced
    )


def test_broken_links_names_absent_files_and_anchors(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="sub/">ok</a><a href="sub/#part">ok</a><a href="https://a.b/">far</a>'
        '<a href="sub/#gone">bad</a><img src="x.png"><a href="#top">ok</a>'
    )
    (tmp_path / "sub" / "index.html").write_text('<p id="part"></p><a href="../">ok</a><a href="/no">bad</a>')
    assert broken_links(tmp_path) == [
        "index.html: sub/#gone",
        "index.html: x.png",
        "sub/index.html: /no",
    ]


def test_every_claim_has_a_page_with_its_data_beside_it():
    sample = mean_of_policies(np.array([0.9, 0.9, 1.0, 1.0, 1.1, 1.1]))
    ends = "{:.3g} to {:.3g}".format(*sample.interval(0.05))
    (evidence,) = decide_family([Measured(CLAIM.trials[0], (sample,), TRIAL.note)])
    pages = claim_pages(Board([Row(CLAIM, CLAIM.trials[0], "reproduced", evidence)], []))
    assert set(pages) == {"index.md", "H1.md", "H1.json"}
    assert "## R: nats" in pages["H1.md"]
    assert f"| 0.2 (a reason) | 1 (95% CI {ends}, n = 6) |" in pages["H1.md"]
    assert "| note | a \\| note |" in pages["H1.md"]
    assert json.loads(pages["H1.json"])[0]["criteria"][0]["estimate"] == 1.0
    assert "[H1](H1.md)" in pages["index.md"]


def test_doc_text_makes_lists_of_arguments_and_bold_sections():
    text = doc_text("""Sum.

    Args:
        x: a number.
        y (int): another.

    Reference: lr Eq. 4.
    """)
    assert "**Args:**" in text
    assert "- `x`: a number." in text
    assert "- `y` (int): another." in text
    assert "**Reference:** lr Eq. 4." in text


def test_reference_has_every_public_name():
    from simlab import formats

    pages = reference_pages()
    assert all(f"## `{name}`" in pages["simlab.formats.md"] for name in formats.__all__)
    assert "0x" not in pages["simlab.objectives.md"]


@pytest.mark.parametrize(
    ("text", "is_formula"),
    [
        ("a $x^2$ b", True),
        ("a $x =\ny$ b", True),
        ("`$x$`", False),
        ("costs $5 and $6", False),
        ("$ a $", False),
    ],
)
def test_formulas_become_mathml(text, is_formula):
    assert ("<math" in with_formulas(text)) == is_formula


def test_formulas_on_their_own_line_become_blocks():
    drawn = with_formulas("It is\n\n$$A \\times\nu$$\n\nsummed over $t$.")
    assert drawn.count("<math") == 2
    assert 'display="block"' in drawn
    assert "$" not in drawn


def test_reference_formulas_exist_and_are_drawn():
    from simlab import metrics, objectives

    pages = reference_pages()
    for catalog, formulas in FORMULAS.items():
        module = objectives if hasattr(objectives, catalog) else metrics
        assert set(formulas) <= set(getattr(module, catalog))
        for formula in formulas.values():
            assert "<math" in with_formulas(f"| ${formula}$ |")
    assert "`tis` | $w = \\min(\\rho, C)$ |" in pages["simlab.objectives.md"]
    assert r"\vert \pi_{train}" in pages["simlab.metrics.md"]
    for name, text in pages.items():
        assert not TEX.search(with_formulas(text)), name


def test_lists_get_a_blank_line_before_them():
    assert with_spaced_lists("Read:\n- a\n- b\n") == "Read:\n\n- a\n- b\n"
    kept = "- a\n  more\n- b\n\n1. x\n2. y\n| t |\n"
    assert with_spaced_lists(kept) == kept


def test_notebook_page_shows_outputs_without_terminal_codes(tmp_path):
    output = nbformat.v4.new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m\n")
    picture = nbformat.v4.new_output("display_data", {"image/png": "aGk=", "text/plain": "<Figure>"})
    cells = [
        nbformat.v4.new_markdown_cell("# Title"),
        nbformat.v4.new_code_cell("print()", outputs=[output, picture]),
    ]
    text = page(nbformat.v4.new_notebook(cells=cells), "nb", tmp_path, "full")
    assert "```text\nred\n```" in text
    assert "![Output of the cell above](nb-1-1.png)" in text
    assert (tmp_path / "nb-1-1.png").read_bytes() == b"hi"
    assert "<Figure>" not in text
    assert "colab" not in text
    shared = page(nbformat.v4.new_notebook(cells=cells), "nb", tmp_path, "full", "lab/simlab")
    assert "https://colab.research.google.com/github/lab/simlab/blob/gh-pages/notebooks/nb.ipynb" in shared


def test_navigation_names_every_page_of_docs():
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages <= set(re.findall(r'"(\w+\.md)"', (ROOT / "docs" / "site.toml").read_text()))


def test_site_config_lists_pages_and_drops_empty_folders(tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.site.build.SOURCES", tmp_path)
    (tmp_path / "claims").mkdir()
    for name in ("H1.md", "H10.md", "H2.md"):
        (tmp_path / "claims" / name).touch()
    text = configuration()
    assert '"claims/H1.md", "claims/H2.md", "claims/H10.md"' in text
    assert "symptoms" not in text
    assert "/*" not in text
