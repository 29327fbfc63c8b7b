"""Guarantees of an installed package: version, public names, type marker, citation."""

import re
import subprocess
import sys
import tomllib
import zlib
from importlib import resources
from pathlib import Path

from typer.testing import CliRunner

import simlab
from scripts.release_check import LARGEST_MB
from simlab.cli import app
from simlab.core.manifest import versions

ROOT = Path(__file__).resolve().parents[1]


def test_the_version_stands_once():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"simlab {simlab.__version__}\n"
    assert versions()["simlab"] == simlab.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == simlab.__version__
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[(\d.+?)\]", changes, re.MULTILINE)[1] == simlab.__version__


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "simlab", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("simlab ")


def test_dir_shows_public_names_only():
    shown = {name for name in dir(simlab) if not name.startswith("_")}
    assert set(simlab.__all__) <= shown
    assert not {"Any", "TYPE_CHECKING", "import_module"} & shown


def test_the_package_is_marked_as_typed():
    assert (resources.files("simlab") / "py.typed").is_file()


def test_the_wheel_stays_small():
    # `make release` measures the wheel itself, minutes later.
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    listed = ["git", "ls-files", "-z", *wheel["packages"], *wheel["force-include"]]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    packed = [len(zlib.compress((ROOT / name).read_bytes())) for name in names.split("\0") if name]
    assert sum(packed) < LARGEST_MB * 1e6


def test_changelog_has_one_change_per_line_in_four_kinds():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    kinds = {line for line in lines if line.startswith("### ")}
    assert kinds <= {"### Added", "### Changed", "### Fixed", "### Removed"}
    newest = lines[lines.index(next(line for line in lines if line.startswith("## ["))) :]
    assert all(line.startswith(("- ", "#")) for line in newest if line)
