"""The manifest tells processors apart, whose float32 sums differ."""

import platform
from dataclasses import replace

import pytest

from simlab.core.manifest import device, processor, processor_family
from simlab.studies.experiment import Experiment, execute

X86 = """processor\t: 0
cpu family\t: 6
model\t\t: 207
model name\t: Some Xeon
stepping\t: 2
flags\t\t: fpu fma avx avx512f amx_tile sse

processor\t: 1
model\t\t: 208
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("description", "name", "vectors"),
    [
        (X86, "Some Xeon, cpu family 6, model 207, stepping 2", "fma avx avx512f amx_tile"),
        (ARM, platform.processor() or platform.machine(), "asimd sve"),
        ("", platform.processor() or platform.machine(), ""),
    ],
)
def test_a_processor_is_what_its_description_says(description, name, vectors):
    assert processor(description) == {"processor": name, "vectors": vectors}


def test_the_device_of_a_result_names_its_processor():
    assert device()["processor"]


def test_processor_family_leaves_out_the_stepping(monkeypatch):
    named = {"processor": "AMD EPYC, cpu family 25, model 17, stepping 1", "vectors": "avx2"}
    monkeypatch.setattr("simlab.core.manifest.processor", lambda: named)
    assert processor_family() == "AMD EPYC, cpu family 25, model 17"


def test_manifest_records_what_was_registered(tmp_path):
    rules = {"looks": [8, 16, 24], "criteria": {"L6 lr_dynamics/R 1": "0f"}}
    experiment = Experiment("made_up", "?", "none", lambda _: None, 1.0, registered=rules)
    assert execute(experiment, tmp_path / "with").manifest["config"]["registered"] == rules
    bare = replace(experiment, registered={})
    assert "registered" not in execute(bare, tmp_path / "without").manifest["config"]


def test_report_prints_square_brackets(tmp_path, capsys):
    command = "pip install 'simlab[vllm]'"
    execute(Experiment("made_up", "?", "none", lambda run: run.report(command), 1.0), tmp_path)
    assert command in capsys.readouterr().err
