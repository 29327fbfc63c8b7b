import base64
import gzip
import json
import re
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from typer.testing import CliRunner

from simlab.cli import app
from simlab.core.paths import committed_results
from simlab.studies import Measured, board
from simlab.studies import estimands as m
from simlab.studies.arms import Arm
from simlab.studies.board import Board, Row
from simlab.studies.contrasts import minus
from simlab.studies.experiment import Experiment, execute
from simlab.studies.loading import load_claims
from simlab.studies.records import Claim, Regime, Trial, primary
from simlab.studies.report import Drawn, page
from simlab.studies.samples import mean_of_policies
from simlab.studies.verdicts import decide_family

runner = CliRunner()


RULE = primary(m.REWARD, minus(Arm("a"), Arm("b")), "positive", 0.2, because="rule & reason")
TRIAL = Trial("tis", (RULE,), Regime("a <unit>"))
CLAIM = Claim("H7", "hacking", "</script><b>", "Fig. 1", "dynamics", (TRIAL,))
SPREAD = np.array([-0.1, 0.0, 0.1, 0.05, -0.05, 0.0])


@pytest.fixture
def shop(monkeypatch, tmp_path):
    """One experiment whose effect counts how often it was run; returns the folder of its first result."""
    runs = []

    def run(run):
        runs.append(1)
        run.table("rows", [{"effect": float(len(runs))}])

    def measure(results):
        effect = float(results.table("rows")["effect"][0])
        return [Measured(CLAIM.trials[0], (mean_of_policies(effect + SPREAD),), "a <note>")]

    found = Experiment("tis", "Does it?", "a rule", run, 0.1, claims=("H7",), collect_evidence=measure)
    catalog = {name: claim for name, claim in load_claims().items() if claim.paper == "hacking"}
    catalog = {name: replace(claim, trials=()) for name, claim in catalog.items()} | {"H7": CLAIM}
    for name, made in (("load_experiments", {"tis": found}), ("load_claims", catalog)):
        monkeypatch.setattr(f"simlab.studies.board.{name}", lambda made=made: made)
    execute(found, tmp_path / "tis")
    return tmp_path


def test_json_holds_every_claim_and_the_schema(shop):
    rows = json.loads(runner.invoke(app, ["claims", "--json", "--results", str(shop)]).stdout)
    assert [row["id"] for row in rows] == [f"H{n}" for n in range(1, 21)]
    (row,) = [row for row in rows if row["id"] == "H7"]
    (criterion,) = row["criteria"]
    assert (row["verdict"], row["registered"], row["regime"]) == ("reproduced", "after", "a <unit>")
    assert (criterion["estimate"], criterion["policies"], criterion["verdict"]) == (1.0, 6, "supported")
    assert criterion["ci_low"] > criterion["margin"] == 0.2
    assert criterion["adjusted_p"] == criterion["p"] < 0.05
    shown = runner.invoke(app, ["claims", "--paper", "hacking", "--results", str(shop)])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.rstrip().endswith("20 claims in 20 regimes: 1 reproduced, 19 not run")
    only = runner.invoke(app, ["claims", "--verdict", "reproduced", "--json", "--results", str(shop)])
    assert [row["id"] for row in json.loads(only.stdout)] == ["H7"]


def test_claims_print_a_heading_per_claim_and_its_regimes(shop):
    shown = runner.invoke(app, ["claims", "--results", str(shop)]).stdout
    title, verdict, rule, quantity, estimate, verdicts = shown.partition("\nH7 ")[2].splitlines()[:6]
    assert title.startswith("</script><b> (hacking ")
    assert verdict == "  reproduced: a <unit>"
    assert rule == "    tis; rule set: rule changed after the run"
    assert quantity == "    reward, last quarter: a minus b"
    assert estimate.startswith("    1 (")
    assert "adjusted p " in estimate
    assert verdicts == "    primary: supported"


def test_ids_show_every_criterion(shop):
    done = runner.invoke(app, ["claims", "H7", "--results", str(shop)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("H7 reproduced: </script><b>\n  regime: a <unit>\n")
    assert "rule & reason" in done.stdout
    assert "0.2" in done.stdout
    assert "H8" not in done.stdout
    only = runner.invoke(app, ["claims", "H7", "H8", "--json", "--results", str(shop)])
    assert [row["id"] for row in json.loads(only.stdout)] == ["H7", "H8"]


def test_claims_without_a_match_name_the_filters(shop):
    given = ["claims", "H7", "--verdict", "contradicted", "--results", str(shop)]
    done = runner.invoke(app, given)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no claim matches all filters: ids H7, --verdict contradicted" in " ".join(done.stderr.split())
    done = runner.invoke(app, [*given, "--json"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, [])


def test_report_rejects_an_unwritable_file_first(shop, monkeypatch):
    monkeypatch.setattr("simlab.studies.report.write_report", lambda *_: pytest.fail("computed"))
    done = runner.invoke(app, ["report", "--out", "/proc/x.html", "--results", str(shop)])
    assert done.exit_code == 2
    message = r"--out must be a file in a writable directory, got /proc/x.html \("
    assert re.search(message, " ".join(done.stderr.split()))


def test_recompute_prints_the_minutes_and_both_verdicts(shop):
    out = shop / "again"
    done = runner.invoke(app, ["claims", "--recompute", "H7", "--results", str(shop), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("H7: tis, about 0.1 min on two cores, into ")
    assert re.search(r"stored.*│ 1 ", done.stdout)
    assert re.search(r"now.*│ 2 ", done.stdout)


@pytest.mark.parametrize("stops", [True, False])
def test_recompute_stops_for_futility_as_the_stored_run_did(shop, stops):
    execute(board.load_experiments()["tis"], shop / "tis", stops_for_futility=stops)
    out = shop / "again"
    done = runner.invoke(app, ["claims", "--recompute", "H7", "--results", str(shop), "--out", str(out)])
    assert done.exit_code == 0, done.output
    config = json.loads((out / "manifest.json").read_text())["config"]
    assert config.get("stops_for_futility", True) is stops


def test_check_names_results_without_a_commit(shop):
    manifest = shop / "tis" / "manifest.json"
    facts = json.loads(manifest.read_text()) | {"commit": "0" * 40, "dirty": False}
    manifest.write_text(json.dumps(facts))
    done = runner.invoke(app, ["claims", "--check", "--results", str(shop)])
    assert done.exit_code == 1
    assert "tis: commit 000000000000 does not exist" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recompute", "H77"], r"unknown claim 'H77'; did you mean 'H7'\? allowed: H1, "),
        (["--recompute", "H1"], r"no experiment decides H1 yet"),
        (["H77"], r"unknown claim 'H77'; did you mean 'H7'\?"),
        (["--check", "H7"], r"--check must be given without ids"),
        (["--paper", "hackin"], r"unknown paper 'hackin'; did you mean 'hacking'\?"),
        (["--verdict", "true"], r"unknown verdict 'true'; .*allowed: reproduced, partly reproduced"),
    ],
)
def test_bad_input_is_one_clear_error(shop, arguments, message):
    result = runner.invoke(app, ["claims", "--results", str(shop), *arguments])
    assert result.exit_code == 2
    assert re.search(message, result.stderr.replace("\n", " "))
    assert "Traceback" not in result.output


def test_report_is_one_page_that_needs_no_network(shop, tmp_path):
    first, second = tmp_path / "a.html", tmp_path / "b.html"
    done = runner.invoke(app, ["report", "--out", str(first), "--results", str(shop)])
    assert done.exit_code == 0, done.output
    runner.invoke(app, ["report", "--out", str(second), "--results", str(shop)])
    text = first.read_text()
    assert text == second.read_text()
    assert not re.search(r"(src|href)=\"(?!#|data:|a_files/)", text)
    assert len(text) < 3_000_000
    packed = re.search(r'id="plotly-code">(.+?)</script>', text)[1]
    assert b"plotly.js v" in gzip.decompress(base64.b64decode(packed))[:200]
    assert "a &lt;unit&gt;" in text
    assert "a &lt;note&gt;" in text
    assert "rule &amp; reason" in text
    assert text.count('<tr role="row" id=') == 20
    assert 'href="#exp-tis"' in text
    assert 'id="exp-tis"' in text


def test_report_loads_its_pictures_lazily(tmp_path):
    (evidence,) = decide_family([Measured(CLAIM.trials[0], (mean_of_policies(1 + SPREAD),))])
    rows = [Row(CLAIM, CLAIM.trials[0], "reproduced", evidence)]
    picture = committed_results("").parents[1] / "figures" / "out" / "format_error.png"
    text = page(Board(rows, []), [], [Drawn("format_error", "formats", "A caption", picture)], "here")
    image = re.search(r"<img [^>]+>", text)[0]
    assert 'src="here/format_error.png"' in image
    assert 'loading="lazy"' in image
    width, height = plt.imread(picture).shape[1::-1]
    assert f'width="{width}" height="{height}"' in image
    data = re.search(r'id="effects-data">(.+?)</script>', text)[1]
    assert json.loads(data)[0]["reach"] == evidence.primary.ci_high
    assert json.loads(data)[0]["statement"] == "</script><b> (a <unit>)"


def test_unreadable_result_is_named_on_the_page(shop, tmp_path):
    (shop / "tis" / "rows.parquet").unlink()
    done = runner.invoke(app, ["report", "--out", str(tmp_path / "a.html"), "--results", str(shop)])
    assert done.exit_code == 0
    assert "tis cannot decide from its tables" in done.stderr
    assert "tis cannot decide from its tables" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize("command", [["claims"], ["report", "--out", "page.html"]])
def test_a_folder_of_results_that_is_not_there_is_an_error(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, [*command, "--results", "nowhere"])
    assert result.exit_code == 2
    assert "nowhere" in result.stderr
    assert not (tmp_path / "page.html").exists()
