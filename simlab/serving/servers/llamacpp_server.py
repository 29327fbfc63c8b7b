"""llama.cpp behind a pipe: loads GGUF files, samples token by token, scores.

Runs with the interpreter of an environment that has llama-cpp-python; requests come on standard input,
answers go to standard output, everything else to standard error.
"""

import platform
from typing import Any

import llama_cpp  # pyright: ignore[reportMissingImports]
import numpy as np
from llama_cpp import llama_cpp as bindings  # pyright: ignore[reportMissingImports]
from messages import serve  # pyright: ignore[reportMissingImports]

_library_defaults = bindings.llama_model_default_params


def _without_repacking() -> Any:
    """Return default settings of a model, with matrices in their plain layout.

    Processors with AMX would repack them, and those kernels end the process when a mixture of experts in
    q8_0 is scored. `Llama` has no argument for this setting.
    """
    settings = _library_defaults()
    settings.use_extra_bufts = False
    return settings


bindings.llama_model_default_params = _without_repacking


class Server:
    """The model, which processes one sequence at a time."""

    def __init__(self):
        """Start without a model."""
        self.model: Any = None

    def describe(self, _header: dict, _arrays: dict) -> tuple[dict, dict]:
        """Return versions."""
        return {"python": platform.python_version(), "llama-cpp-python": llama_cpp.__version__}, {}

    def load(self, header: dict, _arrays: dict) -> tuple[dict, dict]:
        """Load the GGUF file `folder`, for sequences of up to `context` tokens.

        Keys and values are float16, llama.cpp's default, or float32 for a float32 file.
        """
        cache = llama_cpp.GGML_TYPE_F32 if header["dtype"] == "f32" else llama_cpp.GGML_TYPE_F16
        self.model = llama_cpp.Llama(
            header["folder"],
            n_ctx=header["context"],
            n_batch=header["context"],
            n_threads=1,
            n_threads_batch=1,
            logits_all=True,
            verbose=False,
            type_k=cache,
            type_v=cache,
        )
        return {}, {}

    def score(self, _header: dict, arrays: dict) -> tuple[dict, dict]:
        """Return log-probabilities of `tokens` [B, S] from position `first` on."""
        first = int(arrays["first"])
        logps = []
        for row in arrays["tokens"]:
            self._start(row[:-1])
            rows = _log_softmax(self.model.scores[first - 1 : len(row) - 1])
            logps.append(rows[np.arange(len(rows)), row[first:]])
        return {}, {"logps": np.asarray(logps, np.float32)}

    def generate(self, header: dict, arrays: dict) -> tuple[dict, dict]:
        """Sample up to `max_tokens` tokens after each of `prompts` [N, P], stopped by `eos_token_id`."""
        shape = len(arrays["prompts"]), header["max_tokens"]
        tokens, logps = np.full(shape, header["pad_token_id"], np.int32), np.zeros(shape, np.float32)
        for row, prompt in enumerate(arrays["prompts"]):
            rng = np.random.default_rng((header["seed"], row))
            self._start(prompt)
            for position in range(header["max_tokens"]):
                reported = _log_softmax(self.model.scores[self.model.n_tokens - 1])
                token = _draw(reported, header["temperature"], rng)
                tokens[row, position], logps[row, position] = token, reported[token]
                if token == header["eos_token_id"] or position == header["max_tokens"] - 1:
                    break
                self.model.eval([token])
        return {}, {"tokens": tokens, "logps": logps}

    def _start(self, tokens: np.ndarray) -> None:
        vocabulary = self.model.n_vocab()
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            raise IndexError(f"tokens must be below {vocabulary}, got {tokens.max()}.")
        self.model.reset()
        self.model.eval(tokens.tolist())


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _draw(logps: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    if not temperature:
        return int(logps.argmax())
    return int((logps / temperature + rng.gumbel(size=logps.shape)).argmax())


if __name__ == "__main__":
    serve(Server)
