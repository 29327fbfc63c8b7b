"""Probe with emulated engines: tables, and the remaining tables after a failure."""

import json
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import simlab.serving.engine_probe as module
from simlab.checkpoints import save_checkpoint
from simlab.cli import app
from simlab.core.manifest import build_manifest, write_manifest
from simlab.core.results import Results, write_table
from simlab.models import TransformerConfig, init_params
from simlab.serving.calibration import read_measured_pair
from simlab.serving.engine_probe import Probe
from simlab.serving.probe_report import build_mismatch_rows
from simlab.serving.prompts import find_eos_token_id, load_task_prompts, read_prompt_file, stack_prompts
from simlab.serving.protocol import EngineError, EngineScores, Samples, SamplingRequest
from simlab.studies.experiment import ExperimentContext

CONFIG = TransformerConfig(hidden_size=32, num_hidden_layers=1, intermediate_size=32, num_experts=4)


def test_build_mismatch_rows_by_hand():
    """Two sequences of 4 and 2 tokens, one layer, one flip in six tokens."""
    logp = np.float32([[-1, -2, -3, -4], [-1, -0.05, 0, 0]])
    mask = np.asarray([[1, 1, 1, 1], [1, 1, 0, 0]], bool)
    rho = np.float32([[0.1, -0.1, 0.3, 0], [0, 0.2, 9, 9]])
    experts = np.zeros((2, 5, 1, 2), np.int32) + np.asarray([0, 1], np.int32)
    flipped = experts.copy()
    flipped[0, 2] = [1, 2]  # read to predict the second token of the response
    flipped[0, 3] = [1, 0]  # the same set in another order
    flipped[1, 4] = [3, 2]  # after the end
    sampled = Samples(np.zeros((2, 4), np.int32), mask, logp - rho, experts)
    rows = build_mismatch_rows(
        {"sampling_engine": "a", "scoring_engine": "b"},
        np.zeros((2, 2), np.int32),
        sampled,
        EngineScores(logp, flipped),
    )
    (pair,) = rows["pairs"]
    assert pair["tokens"] == 6
    assert pair["rms_log_rho"] == pytest.approx(np.sqrt((0.01 + 0.01 + 0.09 + 0.04) / 6), rel=1e-5)
    assert pair["max_rho"] == pytest.approx(np.exp(0.3), rel=1e-5)
    assert pair["router_flips"] == pytest.approx(1 / 6)
    assert rows["flips"] == [
        {"sampling_engine": "a", "scoring_engine": "b", "layer": 0, "flips": pytest.approx(1 / 6)}
    ]
    # exp(-4) < .05 < exp(-2) < exp(-1) < exp(-.05): bins up to .001, .01, .1, .5, .9, 1
    assert [row["tokens"] for row in rows["bins"]] == [0, 0, 2, 3, 0, 1]
    assert [row["tokens"] for row in rows["positions"]] == [2, 2, 1, 1]
    assert rows["positions"][2]["rms_log_rho"] == pytest.approx(0.3, rel=1e-5)
    assert [(row["sequence"], row["position"]) for row in rows["tokens"]] == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    params = init_params(jax.random.key(0), CONFIG)
    return save_checkpoint(tmp_path_factory.mktemp("probe") / "policy", CONFIG, params)


@pytest.mark.slow
def test_probe_command_writes_a_report(policy, tmp_path):
    command = ["probe", str(policy), "--sample", "f32", "--score", "bf16", "--task", "add", "--count", "4"]
    done = CliRunner().invoke(app, [*command, "--length", "3", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    pairs = {row["scoring_engine"]: row for row in json.loads(done.stdout)}
    assert set(pairs) == {"bf16", "f32"}
    assert pairs["bf16"]["rms_log_rho"] > 10 * max(pairs["f32"]["rms_log_rho"], 1e-6)
    import pandas as pd

    layers = pd.read_parquet(tmp_path / "layers.parquet")
    assert layers.depth.tolist() == [1]
    assert 1e-4 < layers.difference[0] < 0.1
    assert json.loads((tmp_path / "manifest.json").read_text())["name"] == "probe"
    check_calibration(policy, tmp_path, tmp_path / "calibration")


def check_calibration(policy, probe, out):
    """Calibration recovers the sampling engine, ranks it first, and draws it."""
    command = [
        "calibrate",
        str(probe),
        str(policy),
        "--sample",
        "f32",
        "--score",
        "bf16",
        "--train",
        "bf16",
    ]
    done = CliRunner().invoke(app, [*command, "--engine", "fp16", "--engine", "f32", "--out", str(out)])
    assert done.exit_code == 0, done.output
    results = Results(out)
    assert results.table("fits").set_index("emulation").verdict["f32"] == "good"
    quantiles = results.table("quantiles").set_index("emulation")
    assert set(quantiles.index) == {"fp16", "f32"}
    np.testing.assert_allclose(quantiles.loc["f32"].measured, quantiles.loc["f32"].predicted, atol=1e-5)
    assert results.manifest["config"]["emulations"] == ["fp16", "f32"]
    assert (out / "calibration.png").stat().st_size > 1000


class Counting:
    """An engine whose tokens count up, each with probability 1/2."""

    def __init__(self, name):
        self.name = name

    def sync_weights(self, _config, _params):
        return 0.0

    def describe(self):
        return {"engine": self.name, "versions": {"counting": "1"}}

    def generate(self, prompts, sampling):
        responses = prompts[:, -1:] + 1 + np.arange(sampling.max_tokens, dtype=np.int32)
        return Samples(
            responses, np.ones_like(responses, bool), np.full(responses.shape, -0.7, np.float32), None
        )

    def score(self, _prompts, responses):
        if self.name == "fp16":
            raise EngineError("out of memory")
        return EngineScores(np.full(responses.shape, -0.6, np.float32), None)


def test_probe_keeps_all_tables_when_an_engine_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "open_engine", Counting)
    run = ExperimentContext("probe", tmp_path)
    prompts = np.arange(8, dtype=np.int32).reshape(2, 4)
    probe = Probe(run, model="tiny")
    probe.measure(
        CONFIG,
        {},
        prompts,
        ["bf16"],
        ["fp16", "f32"],
        SamplingRequest(max_tokens=3, eos_token_id=1, pad_token_id=0),
    )
    assert [(row["scoring_engine"], row["router_flips"]) for row in probe.rows["pairs"]] == [
        ("bf16", None),
        ("f32", None),
    ]
    assert probe.rows["failures"] == [
        {"model": "tiny", "engine": "fp16", "during": "score", "error": "out of memory"}
    ]
    assert probe.rows["samples"][1]["response"] == [8, 9, 10]
    assert {"pairs", "tokens", "samples", "failures"} <= set(run.tables)
    # The tables can be read as a measured pair.
    write_manifest(tmp_path, build_manifest("probe", {}, [], {}, run.tables))
    results = Results(tmp_path)
    tables = results.table("tokens"), results.table("samples")
    found, responses, mask, train, infer = read_measured_pair(*tables, "bf16", "f32", model="tiny")
    np.testing.assert_array_equal(found, prompts)
    np.testing.assert_array_equal(responses, [[4, 5, 6], [8, 9, 10]])
    assert mask.all()
    assert (train == np.float32(-0.6)).all()
    assert (infer == np.float32(-0.7)).all()
    with pytest.raises(
        ValueError, match=r"pair \(sampling / scoring engine\) must be one of bf16.*got f32 / bf16"
    ):
        read_measured_pair(*tables, "f32", "bf16")


def test_probe_rejects_unknown_engines_first(tmp_path):
    probe, prompts = Probe(ExperimentContext("probe", tmp_path)), np.zeros((1, 2), np.int32)
    sampling = SamplingRequest(max_tokens=1, eos_token_id=1, pad_token_id=0)
    with pytest.raises(ValueError, match="unknown engine 'bf61'; did you mean 'bf16'"):
        probe.measure(CONFIG, {}, prompts, ["f32"], ["bf61"], sampling)
    with pytest.raises(ValueError, match="unknown kind of engine 'sglang'"):
        probe.measure(CONFIG, {}, prompts, ["sglang:bf16"], [], sampling)


PROBE_RANGES = [
    (["--length", "0"], r"--length must be at least 1 and at most 1000000.*, got 0"),
    (["--count", "0"], r"--count must be at least 1 and at most 1000000.*, got 0"),
    (["--count", "-3"], r"--count must be at least 1 and at most 1000000.*, got -3"),
    (["--prompt-tokens", "0"], r"--prompt-tokens must be at least 1 and at most 1000000.*, got 0"),
    (["--prompt-tokens", "500"], r"--prompt-tokens must be between 1 and \d+, the length of .*, got 500"),
    (["--seed", "-1"], r"--seed must be at least 0 and at most 2147483647, got -1"),
    (["--temperature", "nan"], r"--temperature must be 0 \(greedy\) or positive .*, got nan"),
    (["--temperature", "inf"], r"--temperature must be 0 .* and finite in float32, got inf"),
    (["--temperature", "-1"], r"--temperature must be 0 .*, got -1"),
    (["--end", "99999"], r"--end must be at least 0 and below 32, the vocabulary size .*, got 99999"),
    (["--end", "-1"], r"--end must be at least 0.*, got -1"),
    (["--prompts", "nofile"], r"--prompts must be a file, got nofile"),
    (["--score", "bf61"], r"unknown engine 'bf61'; did you mean 'bf16'"),
    (["--out", "ex.py"], r"--out must be a directory, got the file ex.py"),
]


@pytest.mark.parametrize(("options", "message"), PROBE_RANGES)
def test_probe_rejects_bad_options_first(policy, tmp_path, monkeypatch, options, message):
    def compute(*_):
        raise AssertionError("an engine was opened")

    monkeypatch.setattr(module, "open_engine", compute)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ex.py").touch()
    source = [] if "--prompts" in options else ["--task", "add"]
    done = CliRunner().invoke(app, ["probe", str(policy), "--sample", "f32", *source, *options])
    assert done.exit_code == 2, done.output
    assert re.search(message, " ".join(done.stderr.split()))
    assert "Traceback" not in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["ex.py"]


def test_probe_ignores_failures_of_an_earlier_run(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "open_engine", Counting)
    command = ["probe", str(policy), "--sample", "f32", "--task", "add", "--count", "2", "--length", "2"]
    command += ["--out", str(tmp_path)]
    failed = CliRunner().invoke(app, [*command, "--score", "fp16"])
    assert failed.exit_code == 1, failed.output
    assert Results(tmp_path).table("failures").engine.tolist() == ["fp16"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "failures" not in Results(tmp_path).table_names


def test_probe_prints_its_own_tables_only(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "open_engine", Counting)
    write_table(tmp_path, "failures", [{"engine": "of another tool"}])
    command = ["probe", str(policy), "--sample", "f32", "--task", "add", "--count", "2", "--length", "2"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "failures" not in done.stderr


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1 and at most 1000000, got 0"),
        ({"eos_token_id": -1}, "eos_token_id must be at least 0, got -1"),
        ({"temperature": float("nan")}, r"temperature must be 0 \(greedy\) or positive .*, got nan"),
        ({"temperature": 1e-45}, "temperature must be 0 .*, got 1e-45"),
        ({"seed": -1}, "seed must be at least 0 and at most 2147483647, got -1"),
    ],
)
def test_sampling_request_checks_its_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        SamplingRequest(**{"max_tokens": 3, "eos_token_id": 1, "pad_token_id": 0, **fields})


def test_read_prompt_file_reads_texts_and_ids(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text('1+2=\n[5, 6, 7]\n\n"[3"\n'.replace("[3", "34"))
    found = read_prompt_file(file)
    assert [len(prompt) for prompt in found] == [4, 3, 2]
    np.testing.assert_array_equal(stack_prompts(found), [[found[0][2], found[0][3]], [6, 7], found[2]])
    for length in (0, 3):
        message = f"prompt-tokens must be between 1 and 2, the length of the shortest prompt, got {length}"
        with pytest.raises(ValueError, match=message):
            stack_prompts(found, length)
    file.write_text("1+2=\n[5, -1]")
    with pytest.raises(ValueError, match="line 2: token ids must be a list"):
        read_prompt_file(file)
    file.write_text("1+2=\n[5, 99999]")
    with pytest.raises(ValueError, match=r"line 2: token ids must be below 32, the vocabulary.*got 99999"):
        read_prompt_file(file)
    file.write_text('""')
    with pytest.raises(ValueError, match="line 1: a prompt must have at least one token"):
        read_prompt_file(file)
    file.write_text("\n")
    with pytest.raises(ValueError, match="must have at least one prompt"):
        read_prompt_file(file)
    with pytest.raises(ValueError, match="unknown task 'ad'"):
        load_task_prompts("ad", 3)


def test_find_eos_token_id_reads_the_config(tmp_path):
    wide = replace(CONFIG, vocab_size=64)
    with pytest.raises(ValueError, match="must have eos_token_id"):
        find_eos_token_id(tmp_path, wide)
    (tmp_path / "config.json").write_text('{"eos_token_id": [7, 9]}')
    assert find_eos_token_id(tmp_path, wide) == 7
