"""Peak memory of loading and saving, of a process of its own, in units of the checkpoint."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
import jax, numpy as np
from simlab.checkpoints import load_checkpoint, save_checkpoint
from simlab.models.parameters import shapes_of
from simlab.models import TransformerConfig

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

task, folder, dtype = sys.argv[1:]
config = TransformerConfig(vocab_size=20_000, hidden_size=512, num_hidden_layers=4, num_attention_heads=8,
                           num_key_value_heads=4, intermediate_size=4096, num_experts=8,
                           moe_intermediate_size=512, tie_word_embeddings=False)
jax.block_until_ready(jax.numpy.ones(3) + 1)
if task == "save":
    shapes = shapes_of(config)
    generator = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: generator.standard_normal(leaf.shape, np.float32), shapes)
    before = memory("VmRSS")
    save_checkpoint(folder, config, params, dtype=dtype)
else:
    shapes_of(config)
    before = memory("VmRSS")
    config, params = load_checkpoint(folder)
    jax.block_until_ready(params)
print(memory("VmHWM") - before, sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
"""


def measured(*arguments: str) -> tuple[int, int]:
    """Bytes at the peak beyond those before the call, and bytes of the parameters."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    extra, parameters = map(int, done.stdout.split())
    return extra, parameters


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_and_saving_use_little_memory(tmp_path, dtype):
    saving, parameters = measured("save", str(tmp_path / "m"), dtype)
    assert 150e6 < parameters < 300e6
    assert saving < 0.2 * parameters
    loading, parameters = measured("load", str(tmp_path / "m"), dtype)
    # Widened to float32: the parameters are the checkpoint, or twice a checkpoint of 16 bits.
    assert 0.9 * parameters < loading < 1.2 * parameters
