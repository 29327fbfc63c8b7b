"""The report in a real browser: phone and desktop widths, light and dark."""

import json
import subprocess

import pytest

from simlab.studies.board import board
from simlab.studies.report import write_report
from tests.engines_real.frameworks import ROOT, interpreter

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def num_rows():
    return len(board().rows)


@pytest.fixture(scope="module", params=["light", "dark"])
def seen(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path)
    command = [interpreter("browser"), "scripts/browser_check.py", str(path), "--scheme", request.param]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout) | {"scheme": request.param}


def test_no_console_message_and_nothing_from_outside(seen):
    assert seen["loaded"]
    assert seen["console"] == []
    assert all(width["outside"] == [] for width in seen["widths"].values())


def test_pictures_load_when_they_come_into_view(seen):
    assert 0 < seen["lazy"] <= seen["widths"]["1280"]["images"]


def test_forest_plot_follows_filter_and_keyboard(seen, num_rows):
    plot = seen["plot"]
    assert plot["ready"]
    assert plot["focused"]
    assert plot["height"] >= 20 * plot["all"]
    assert 0 < len(plot["lr"]) < plot["all"] <= num_rows
    assert all(name.startswith("L") for name in plot["lr"])
    first = plot["hash"].removeprefix("#")
    assert first in plot["lr"]
    assert plot["pointed"].startswith(f"{first.split('-')[0]}, ")
    assert plot["hovered"] == 1
    assert plot["hash"] == f"#{first}"


@pytest.mark.parametrize("width", ["360", "1280"])
def test_fits_links_and_is_legible(seen, width, num_rows):
    page = seen["widths"][width]
    assert page["scroll"] <= page["client"] <= int(width)
    assert page["wide"] == []
    assert page["links"] > num_rows
    assert page["broken"] == []
    assert page["images"] >= 1
    assert page["blank"] == page["unlabeled"] == 0
    assert page["dark"] == (seen["scheme"] == "dark")
    # WCAG 2.2 AA for text of normal size.
    assert page["contrast"] >= 4.5


def test_filters_filter_and_a_link_reveals_its_claim(seen, num_rows):
    found = seen["filters"]
    assert found["all"] == num_rows
    for name in ("paper", "verdict", "kind", "regime"):
        assert all(right for _, _, right in found[name])
        assert sum(count for _, count, _ in found[name]) == num_rows
    assert 0 < len(found["search"]) < num_rows
    assert all(found["search"])
    assert found["status"] == f"{len(found['search'])} of {num_rows} rows"
    assert 0 < len(found["both"]) < len(found["search"])
    assert set(found["both"]) == {"lr"}
    assert seen["revealed"] == [True, True, 0]
