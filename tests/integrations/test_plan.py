"""Plans against numbers computed by hand."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from simlab.checkpoints.hugging_face_config import to_config_json
from simlab.cli import app
from simlab.integrations.export import verl_run
from simlab.integrations.resource_plan import (
    AT_LEAST,
    DEVICES,
    ESTIMATE,
    REAL_MODELS,
    Step,
    find_devices,
    find_model,
    memory_items,
    parameter_counts,
    plan,
    time_items,
)
from simlab.models import TransformerConfig
from simlab.sweeps.config import run_config

# One layer, two experts of which one is taken; 2 key heads and 2 query heads of 4; 10 tokens; width 8.
TOY = TransformerConfig(
    vocab_size=10,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=4,
    num_experts=2,
    num_experts_per_tok=1,
    moe_intermediate_size=3,
    tie_word_embeddings=False,
)
STEP = Step(sequences=6, prompt=2, response=4, compute=0.5, memory=0.25)
DEVICE = replace(DEVICES["H100"], flops=1000.0, memory=2000.0, bandwidth=100.0, link=10.0)


def values(items) -> dict[str, float]:
    return {f"{item.part} {item.quantity}": item.value for item in items}


def test_parameters_of_published_models():
    """As their cards say: 30.5 billion, 3.3 with the embedding; 235 and 22; 8.2; 134.5 million."""
    total, active = parameter_counts(REAL_MODELS["Qwen3-30B-A3B"])
    # Embedding and head, last norm; per layer queries, keys, values, output, router, experts, norms.
    layer = 2048 * 5120 + 4096 * 2048 + 2048 * 128 + 128 * 3 * 2048 * 768 + 2 * 2048 + 2 * 128
    assert total == 2 * 151936 * 2048 + 2048 + 48 * layer == 30_532_122_624
    assert active == total - 151936 * 2048 - 48 * 120 * 3 * 2048 * 768
    assert active + 151936 * 2048 == pytest.approx(3.3e9, rel=0.02)
    total, active = parameter_counts(REAL_MODELS["Qwen3-235B-A22B"])
    assert total == pytest.approx(235e9, rel=0.002)
    assert active == pytest.approx(22e9, rel=0.03)
    assert parameter_counts(REAL_MODELS["Qwen3-8B"])[0] == pytest.approx(8.19e9, rel=0.001)
    assert parameter_counts(REAL_MODELS["SmolLM2-135M"]) == (134_515_008, 134_515_008)


def test_a_toy_by_hand():
    """Parameters: embedding and head 80, norm 8; qkv 192, o 64, router 16, two experts of 72, norms 24."""
    total = 80 + 80 + 8 + 192 + 64 + 16 + 2 * 72 + 24
    active = total - 80 - 72
    assert parameter_counts(TOY) == (total, active) == (608, 456)
    found = values(memory_items(TOY, 4, DEVICE, STEP))
    assert found["train states"] == 16 * 608 / 4
    assert found["train layer inputs"] == 2 * 6 * 8
    # Six of width 8, 24 + 8 of the heads, one expert of 3 x 3 + 8.
    assert found["train activations of a layer"] == 2 * 6 * (48 + 32 + 17)
    assert found["train logits"] == 8 * 6 * 10
    assert found["train sum"] == 2432 + 2432 + 96 + 1164 + 480
    assert found["sample weights"] == 2 * 608 / 4
    assert found["sample cache of a token"] == 2 * 1 * 2 * 4 * 2
    # 4 x (1800 - 304) byte for sequences of 6 tokens of 32 byte.
    assert found["sample concurrent"] == 31
    found = values(time_items(TOY, 4, DEVICE, STEP))
    speed = 4 * 1000 * 0.5
    forward = 6 * (2 * 456 * 6 + 16 * 36)
    assert found["time score"] == pytest.approx(forward / speed)
    assert found["time update"] == pytest.approx(4 * forward / speed)
    assert found["time prefill"] == pytest.approx(6 * (2 * 456 * 2 + 16 * 4) / speed)
    # Reading 1216 byte of weights and 6 caches of 4 tokens takes longer than computing.
    assert found["time decode"] == pytest.approx(4 * (2 * 608 + 32 * 4 * 6) / (4 * 100 * 0.25))
    assert found["time gather"] == pytest.approx(2 * 6 * 608 * 0.75 / 10)
    assert found["time sync"] == pytest.approx(2 * 608 / 4 / 10)
    parts = [value for name, value in found.items() if name != "time step"]
    assert found["time step"] == pytest.approx(sum(parts))


def test_more_devices_and_narrower_weights_help():
    eight, sixteen = (values(plan("Qwen3-30B-A3B", f"{n}xH100", Step())) for n in (8, 16))
    assert sixteen["train states"] == eight["train states"] / 2
    assert sixteen["time score"] == pytest.approx(eight["time score"] / 2)
    narrow = values(plan("Qwen3-30B-A3B", "8xH100", Step(weight_bytes=1)))
    assert narrow["sample weights"] == eight["sample weights"] / 2
    assert narrow["time decode"] < eight["time decode"]


def test_find_model_reads_a_config_json(tmp_path):
    config = REAL_MODELS["Qwen3-30B-A3B"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_config_json(config, "bfloat16", 4096)))
    for name in (path, tmp_path):
        assert parameter_counts(find_model(str(name))) == parameter_counts(config)
    path.write_text("{}")
    with pytest.raises(ValueError, match="unknown model_type None"):
        find_model(str(path))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        find_model(str(tmp_path / "nothing.json"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", r"m\.json is not a JSON object"),
        ("", r"m\.json is not JSON: Expecting value: line 1 column 1"),
        ("\xff", r"m\.json is not JSON"),
    ],
)
def test_find_model_names_a_broken_config_json(tmp_path, text, message):
    path = tmp_path / "m.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=message):
        find_model(str(path))


def test_sum_states_the_fraction_that_it_is_compared_with():
    formulas = {devices: plan("Qwen3-8B", devices, Step())[7].formula for devices in ("8xH100", "1xH200")}
    assert formulas["8xH100"] == "of 80 GB, of which 0.9 (72 GB) are used: fits"
    assert formulas["1xH200"] == "of 141 GB, of which 0.9 (127 GB) are used: does not fit"


def test_the_step_is_a_lower_bound_as_its_parts_are():
    bounds = {f"{item.part} {item.quantity}": item.bound for item in plan("Qwen3-8B", "8xH20", Step())}
    assert bounds["time gather"] == bounds["time step"] == bounds["train sum"] == AT_LEAST
    assert bounds["time update"] == ESTIMATE
    done = CliRunner().invoke(app, ["plan", "--model", "Qwen3-8B", "--devices", "8xH800"])
    assert "of 80 GB, of which 0.9 (72 GB) are used: " in done.stdout
    assert "e+" not in done.stdout.replace(" s, compute", "").split("train", 1)[1].split("time", 1)[0]


def test_default_step_has_the_sequences_of_the_export():
    overrides = verl_run(run_config({"task": "add", "model": "tiny-moe", "engines": "bf16/bf16"})).overrides
    sequences = overrides["data.train_batch_size"] * overrides["actor_rollout_ref.rollout.n"]
    assert Step().sequences == sequences


def test_what_cannot_be_is_refused():
    assert find_devices("4xtpu-V5P") == (4, DEVICES["TPU-v5p"])
    with pytest.raises(ValueError, match="invalid devices 'H100'; write them as 8xH100"):
        find_devices("H100")
    with pytest.raises(ValueError, match="unknown device 'H101'"):
        find_devices("8xH101")
    with pytest.raises(ValueError, match="unknown model 'Qwen3-30B'; did you mean 'Qwen3-30B-A3B'"):
        find_model("Qwen3-30B")
    with pytest.raises(ValueError, match=r"invalid compute 1\.5"):
        Step(compute=1.5)
    with pytest.raises(ValueError, match="too small for one sequence"):
        plan("Qwen3-235B-A22B", "1xH100", Step())


def test_the_command_prints_its_arithmetic():
    done = CliRunner().invoke(app, ["plan", "--model", "Qwen3-30B-A3B", "--devices", "16xTPU-v5p", "--json"])
    assert done.exit_code == 0, done.output
    rows = {(row["part"], row["quantity"]): row for row in json.loads(done.stdout)}
    assert rows["model", "parameters"]["value"] == 30_532_122_624
    assert rows["train", "sum"]["formula"].endswith("fits")
