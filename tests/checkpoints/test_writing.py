"""Writing checkpoints: what comes back, what stands in the folder, and what is refused."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from simlab.checkpoints import load_checkpoint, save_checkpoint
from simlab.models import MODELS, TransformerConfig, init_params
from simlab.tasks.vocabulary import CHARACTERS, encode
from tests.tolerances import assert_exact

TINY = TransformerConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2)
ARCHITECTURES = {
    "Qwen3ForCausalLM": TINY,
    "Qwen3MoeForCausalLM": replace(TINY, num_experts=4, norm_topk_prob=False, tie_word_embeddings=False),
    "Qwen2ForCausalLM": replace(TINY, qk_norm=False, attention_bias=True, head_dim=16),
    "LlamaForCausalLM": replace(TINY, qk_norm=False, rope_theta=1e6, rms_norm_eps=1e-5),
}

DTYPES = ("w8a8", "float32", "bfloat16")
ATTENTION = {f"self_attn.{x}_proj.weight" for x in "qkvo"}
FEED_FORWARD = {f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")}


def random_params(config):
    """Parameters all of which are random, the norms and biases too."""
    params = init_params(jax.random.key(0), config)
    keys = iter(jax.random.split(jax.random.key(1), 99))
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape), params)


@pytest.mark.parametrize("shard_bytes", [10**9, 20_000])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float32_round_trips_bit_exact(tmp_path, architecture, shard_bytes):
    config = ARCHITECTURES[architecture]
    params = random_params(config)
    folder = save_checkpoint(tmp_path / "m", config, params, shard_bytes=shard_bytes)
    assert json.loads((folder / "config.json").read_text())["architectures"] == [architecture]
    assert (folder / "model.safetensors").exists() == (shard_bytes > 20_000)
    assert all(file.stat().st_size < shard_bytes + 4000 for file in folder.glob("*.safetensors"))
    found, loaded = load_checkpoint(folder)
    assert found == config
    jax.tree.map(assert_exact, loaded, params)


@pytest.mark.parametrize("name", MODELS)
def test_every_preset_has_architecture(tmp_path, name):
    zeros = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(lambda: init_params(jax.random.key(0), MODELS[name])),
    )
    assert load_checkpoint(save_checkpoint(tmp_path / "m", MODELS[name], zeros))[0] == MODELS[name]


@pytest.mark.parametrize(("dtype", "storage"), [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)])
def test_writer_rounds_to_nearest_even(tmp_path, dtype, storage):
    params = random_params(TINY)
    folder = save_checkpoint(tmp_path / "m", TINY, params, dtype=dtype)
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == dtype
    expected = jax.tree.map(lambda x: np.asarray(x).astype(storage).astype(np.float32), params)
    jax.tree.map(assert_exact, load_checkpoint(folder)[1], expected)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def test_w8a8_has_int8_rows_with_scales(tmp_path, architecture):
    """Projections within half a step of what they were, the largest of a row exactly 127; all else BF16."""
    config = ARCHITECTURES[architecture]
    params = random_params(config)
    params["layers"][0]["o"] = params["layers"][0]["o"].at[:, 3].set(0.0)
    folders = {name: save_checkpoint(tmp_path / name, config, params, dtype=name) for name in DTYPES}
    stored, exact, half = (load_file(folders[name] / "model.safetensors") for name in DTYPES)
    scales = {name for name in stored if name.endswith("_scale")}
    whole = {name.removesuffix("_scale") for name in scales}
    parts = {name.split(".", 3)[3] for name in whole}
    assert parts == ATTENTION | (set() if config.num_experts else FEED_FORWARD)
    assert stored.keys() - scales == exact.keys()
    for name in whole:
        scale, weights = stored[f"{name}_scale"], stored[name]
        assert (scale.dtype, weights.dtype, scale.shape) == (np.float32, np.int8, (len(weights), 1))
        assert (np.abs(weights * scale - exact[name]) <= scale * (0.5 + 2**-16)).all()
        assert set(np.abs(weights.astype(int)).max(1)) <= {0, 127}
    for name in exact.keys() - whole:
        assert_exact(stored[name].astype(np.float32), half[name].astype(np.float32))
    said = json.loads((folders["w8a8"] / "config.json").read_text())
    assert said["torch_dtype"] == "bfloat16"
    assert said["quantization_config"]["quant_method"] == "compressed-tensors"
    with pytest.raises(ValueError, match=r"quantization_config .* is not supported"):
        load_checkpoint(folders["w8a8"])


def test_special_values_round_trip(tmp_path):
    params = random_params(TINY)
    odd = np.asarray([-0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38], np.float32)
    params["norm"] = params["norm"].at[: len(odd)].set(odd)
    assert_exact(load_checkpoint(save_checkpoint(tmp_path / "m", TINY, params))[1]["norm"], params["norm"])


def test_tokenizer_matches_vocabulary(tmp_path):
    folder = save_checkpoint(tmp_path / "m", TINY, random_params(TINY), max_position_embeddings=64)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert [tokenizer["model"]["vocab"][character] for character in CHARACTERS] == encode(CHARACTERS).tolist()
    generation = json.loads((folder / "generation_config.json").read_text())
    assert CHARACTERS[generation["eos_token_id"]] == "$"
    assert CHARACTERS[generation["pad_token_id"]] == "_"
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 64


def test_writer_copies_source_tokenizer(tmp_path):
    config = replace(TINY, vocab_size=40)
    params = random_params(config)
    folder = save_checkpoint(tmp_path / "a", config, params)
    assert not (folder / "tokenizer.json").exists()
    (folder / "tokenizer.json").write_text("theirs")
    again = save_checkpoint(tmp_path / "b", config, params, tokenizer_from=folder)
    assert (again / "tokenizer.json").read_text() == "theirs"
    with pytest.raises(FileNotFoundError, match=r"must have a tokenizer file, one of tokenizer.json"):
        save_checkpoint(tmp_path / "c", config, params, tokenizer_from=tmp_path)


def test_writer_replaces_checkpoint(tmp_path):
    params = random_params(TINY)
    save_checkpoint(tmp_path / "m", TINY, params, shard_bytes=20_000)
    save_checkpoint(tmp_path / "m", TINY, params)
    assert len(list((tmp_path / "m").glob("*.safetensors"))) == 1
    assert not (tmp_path / "m" / "model.safetensors.index.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_writer_keeps_checkpoint_when_failing(tmp_path):
    params = random_params(TINY)
    folder = save_checkpoint(tmp_path / "m", TINY, params)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    huge = {**params, "norm": params["norm"] * 1e6}
    with pytest.raises(ValueError, match=r"weights of 'model.norm.weight' must fit F16"):
        save_checkpoint(folder, TINY, huge, dtype="float16")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_writer_rejects_directory_with_other_files(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"has 'thesis.tex', which is not part of a checkpoint"):
        save_checkpoint(tmp_path, TINY, random_params(TINY))
    with pytest.raises(ValueError, match=r"got the file .*thesis.tex"):
        save_checkpoint(tmp_path / "thesis.tex", TINY, random_params(TINY))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def changed(name, value):
    return {**random_params(TINY), name: value}


@pytest.mark.parametrize(
    ("config", "params", "options", "words"),
    [
        (
            TINY,
            lambda: changed("norm", jnp.ones(31)),
            {},
            r"norm must be float32\[32\], got float32\[31\]",
        ),
        (
            TINY,
            lambda: changed("norm", jnp.ones(32, jnp.bfloat16)),
            {},
            r"norm .* got bfloat16\[32\]",
        ),
        (TINY, lambda: changed("lm_head", jnp.ones(1)), {}, r"lm_head must be absent, got"),
        (TINY, lambda: {"norm": jnp.ones(32)}, {}, r"embedding must be .*, got missing"),
        (
            TINY,
            lambda: random_params(TINY),
            {"dtype": "float8"},
            "unknown dtype 'float8'; .*allowed: fl",
        ),
        (TINY, lambda: random_params(TINY), {"shard_bytes": 0}, "shard_bytes must be at least 1, got 0"),
        (
            replace(TINY, attention_bias=True),
            lambda: random_params(replace(TINY, attention_bias=True)),
            {},
            "got num_experts 0, qk_norm True, attention_bias True",
        ),
    ],
)
def test_writer_rejects_invalid_arguments(tmp_path, config, params, options, words):
    with pytest.raises(ValueError, match=words):
        save_checkpoint(tmp_path / "m", config, params(), **options)
    assert not list(tmp_path.iterdir())
