"""Checkpoints against transformers: its models read here, simlab's models read there."""

import os
import subprocess
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.checkpoints import load_checkpoint, save_checkpoint
from simlab.engines import ENGINES
from simlab.models import MODELS, init_params, logits
from simlab.rollout.generate import generate
from simlab.rollout.sampling import GREEDY
from simlab.tasks import TASKS
from simlab.tasks.vocabulary import CHARACTERS, EOS_TOKEN_ID, PAD_TOKEN_ID, decode, encode
from simlab.training.warm_start import WarmStart, warm_start
from tests.engines_real.frameworks import ROOT, interpreter

pytestmark = pytest.mark.engines

CASES = (
    "llama",
    "llama-tied-bf16",
    "llama-wide-heads",
    "qwen2",
    "qwen2-tied-f16",
    "qwen3",
    "qwen3-tied-bf16",
    "moe",
    "moe-unnormalized-bf16",
    "moe-fused-tied",
)
score = jax.jit(logits, static_argnums=(1, 3))


def ask(*arguments) -> None:
    """Run the oracle, offline, in its own environment."""
    command = [interpreter("hf"), "scripts/transformers_oracle.py", *map(str, arguments)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"


def bound(config, length: int, scale: float) -> float:
    """Bound on the difference of two float32 forward passes whose logits are up to `scale`.

    A path through a layer has sums of D (three norms and products), of Q = H head_dim (o), of head_dim (QK
    norm, scores), of T (softmax, values) and of the experts' or the feed-forward's width, one rounding of
    2^-24 per term. n independent roundings add up to 8 sqrt(n) of them, with probability 1 - 2 exp(-32) each
    (Higham and Mary 2019, SIAM J. Sci. Comput. 41, A2815, Theorem 2.4); two passes differ by twice that.
    Position t turns by an angle that a float32 frequency puts wrong by up to t 2^-23: that is T more.
    """
    inner = config.moe_intermediate_size if config.num_experts else config.intermediate_size
    heads = config.num_attention_heads * config.head_dim
    layer = 4 * config.hidden_size + heads + 3 * config.head_dim + 4 * length + 2 * inner
    roundings = config.num_hidden_layers * layer + 2 * config.hidden_size
    return 2 * 8 * np.sqrt(roundings) * 2.0**-24 * scale


def check_logits(path, answer) -> None:
    config, params = load_checkpoint(path)
    expected = answer["logits"]
    found = np.asarray(score(params, config, jnp.asarray(answer["tokens"], jnp.int32), "f32"))
    allowed = bound(config, expected.shape[1], float(np.abs(expected).max()))
    apart = float(np.abs(found - expected).max())
    print(f"{path.name}: {apart:.2e} apart, allowed {allowed:.2e}")
    assert apart < allowed
    # The bound is worth something: it is far below what the logits say.
    assert allowed < 1e-2 * expected.std(-1).mean()


@pytest.fixture(scope="module")
def random_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    ask("random", folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_random_models_score_as_in_transformers(random_models, case):
    with np.load(random_models / f"{case}.npz") as answer:
        check_logits(random_models / case, answer)


@pytest.mark.parametrize("case", CASES)
def test_what_was_read_is_written_back(random_models, case, tmp_path):
    """And read again: the same config and the same bits."""
    config, params = load_checkpoint(random_models / case)
    again = load_checkpoint(save_checkpoint(tmp_path / "m", config, params))
    assert again[0] == config
    jax.tree.map(np.testing.assert_array_equal, again[1], params)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2")
    ask("smollm2", folder)
    return folder


@pytest.mark.parametrize("name", ["smollm2", "smollm2.gguf"])
def test_smollm2_scores_as_in_transformers(smollm2, name):
    with np.load(smollm2 / "smollm2.npz") as answer:
        check_logits(smollm2 / name, answer)


PRESETS = {
    "moe": MODELS["tiny-moe"],
    "moe-untied-unnormalized": replace(
        MODELS["tiny-moe"], tie_word_embeddings=False, norm_topk_prob=False, num_attention_heads=4
    ),
    "dense": MODELS["tiny-dense"],
    "qwen2": replace(MODELS["tiny-dense"], qk_norm=False, attention_bias=True, rope_theta=1e6),
    "llama": replace(MODELS["tiny-dense"], qk_norm=False, rms_norm_eps=1e-5, tie_word_embeddings=False),
}
TASK = TASKS["add"]()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_trained_policy_is_the_same_in_transformers(preset, tmp_path):
    """Logits to the bound; greedy responses, and their text, token for token."""
    config = PRESETS[preset]
    params, _ = jax.jit(warm_start, static_argnums=(0, 1))(
        TASK, config, WarmStart(steps=60, batch=32), jax.random.key(0)
    )
    folder = save_checkpoint(tmp_path / "policy", config, params)
    prompts = TASK.prompt_set("held_out")[:16]
    texts = [decode(prompt) for prompt in prompts] + [CHARACTERS]
    tokens = np.asarray(TASK.prompt_set()[:4])
    np.savez(
        tmp_path / "questions.npz", tokens=tokens, prompts=prompts, length=TASK.response_length, texts=texts
    )
    ask("read", folder, tmp_path / "answer.npz")
    with np.load(tmp_path / "answer.npz") as answer:
        check_logits(folder, answer)
        assert answer["storage"] == "torch.float32"
        np.testing.assert_array_equal(answer["encoded"], np.concatenate([encode(text) for text in texts]))
        assert answer["decoded"].tolist() == texts
        responses = greedy(params, config, prompts)
        length = answer["responses"].shape[1]
        np.testing.assert_array_equal(answer["responses"], responses[:, :length])
        assert (responses[:, length:] == PAD_TOKEN_ID).all()
        said = [
            "".join(c for c in decode(row) if c not in (CHARACTERS[EOS_TOKEN_ID], CHARACTERS[PAD_TOKEN_ID]))
            for row in responses
        ]
        assert answer["spoken"].tolist() == said


def greedy(params, config, prompts) -> np.ndarray:
    trajectory = jax.jit(
        lambda params: generate(
            params,
            config,
            ENGINES["f32"],
            GREEDY,
            jax.random.key(0),
            jnp.asarray(prompts),
            lambda tokens: jnp.zeros(len(tokens)),
            group_size=1,
            length=TASK.response_length,
            end=EOS_TOKEN_ID,
            pad=PAD_TOKEN_ID,
        )
    )(params)
    return np.asarray(trajectory.responses)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_transformers_takes_the_storage_from_the_config(dtype, tmp_path):
    config = MODELS["tiny-moe"]
    folder = save_checkpoint(tmp_path / "m", config, init_params(jax.random.key(0), config), dtype=dtype)
    prompts = np.asarray(TASK.prompt_set()[:2])
    np.savez(tmp_path / "questions.npz", tokens=prompts, prompts=prompts, length=1, texts=["1"])
    ask("read", folder, tmp_path / "answer.npz")
    with np.load(tmp_path / "answer.npz") as answer:
        assert answer["storage"] == f"torch.{dtype}"


def test_shards_are_read_by_transformers(tmp_path):
    config = replace(MODELS["tiny-moe"], tie_word_embeddings=False)
    params = init_params(jax.random.key(0), config)
    folder = save_checkpoint(tmp_path / "m", config, params, shard_bytes=100_000)
    assert len(list(folder.glob("model-*.safetensors"))) > 3
    prompts = np.asarray(TASK.prompt_set()[:2])
    np.savez(tmp_path / "questions.npz", tokens=prompts, prompts=prompts, length=1, texts=["1"])
    ask("read", folder, tmp_path / "answer.npz")
    with np.load(tmp_path / "answer.npz") as answer:
        check_logits(folder, answer)
