"""Hugging Face transformers behind a pipe: loads checkpoints, samples token by token, scores.

Runs with the interpreter of an environment that has torch and transformers; requests come on standard input,
answers go to standard output, everything else to standard error.
"""

import os
import platform
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]
from messages import serve  # pyright: ignore[reportMissingImports]


class Server:
    """The model, and the experts that its routers choose, recorded by hooks."""

    def __init__(self):
        """Start without a model."""
        self.model: Any = None
        self.tokenizers: dict[str, Any] = {}
        self.chosen: list[Any] = []

    def describe(self, _header: dict, _arrays: dict) -> tuple[dict, dict]:
        """Return versions."""
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        return {**versions, "transformers": transformers.__version__}, {}

    def load(self, header: dict, _arrays: dict) -> tuple[dict, dict]:
        """Load the checkpoint `folder` as `dtype`."""
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            header["folder"], dtype=header["dtype"]
        )
        self.model.eval()
        for layer in self.model.model.layers:
            gate = getattr(layer.mlp, "gate", None)
            if gate is not None:
                gate.register_forward_hook(lambda _module, _inputs, output: self.chosen.append(output[-1]))
        return {"dtype": str(self.model.dtype)}, {}

    def encode(self, header: dict, _arrays: dict) -> tuple[dict, dict]:
        """Return the tokens of `text` with the tokenizer of `folder`."""
        tokens = self._tokenizer(header["folder"])(header["text"]).input_ids
        return {}, {"tokens": np.asarray(tokens, np.int32)}

    def decode(self, header: dict, arrays: dict) -> tuple[dict, dict]:
        """Return the text of `tokens` with the tokenizer of `folder`."""
        tokenizer = self._tokenizer(header["folder"])
        return {"text": tokenizer.decode(arrays["tokens"].tolist(), skip_special_tokens=True)}, {}

    def _tokenizer(self, folder: str) -> Any:
        if folder not in self.tokenizers:
            self.tokenizers[folder] = transformers.AutoTokenizer.from_pretrained(folder)
        return self.tokenizers[folder]

    def score(self, _header: dict, arrays: dict) -> tuple[dict, dict]:
        """Return float32 log-probabilities of `tokens` [B, S] from position `first` on, and experts."""
        tokens = torch.as_tensor(arrays["tokens"], dtype=torch.long)
        first = int(arrays["first"])
        logits, experts, _ = self._forward(tokens[:, :-1], None)
        logps = torch.log_softmax(logits[:, first - 1 :].float(), -1)
        logps = logps.gather(-1, tokens[:, first:, None])[..., 0]
        return {}, {"logps": logps.numpy(), **experts}

    def generate(self, header: dict, arrays: dict) -> tuple[dict, dict]:
        """Sample exactly `max_tokens` tokens after each of `prompts` [N, P]."""
        generator = torch.Generator().manual_seed(header["seed"])
        read = torch.as_tensor(arrays["prompts"], dtype=torch.long)
        cache, tokens, reported, chosen = None, [], [], []
        for _ in range(header["max_tokens"]):
            logits, experts, cache = self._forward(read, cache)
            logps = torch.log_softmax(logits[:, -1].float(), -1)
            if header["temperature"]:
                probs = torch.softmax(logits[:, -1].float() / header["temperature"], -1)
                read = torch.multinomial(probs, 1, generator=generator)
            else:
                read = logps.argmax(-1, keepdim=True)
            tokens.append(read)
            reported.append(logps.gather(-1, read))
            chosen.append(experts)
        result = {"tokens": torch.cat(tokens, 1).numpy(), "logps": torch.cat(reported, 1).numpy()}
        if chosen[0]:
            result["routed_experts"] = np.concatenate([step["routed_experts"] for step in chosen], axis=1)
        return {}, result

    def hidden(self, _header: dict, arrays: dict) -> tuple[dict, dict]:
        """Return the normed hidden states [depths, B, S, D] of `tokens` after each of `depths` layers."""
        with torch.inference_mode():
            tokens = torch.as_tensor(arrays["tokens"], dtype=torch.long)
            states = self.model(input_ids=tokens, output_hidden_states=True).hidden_states
            # The last state is normed already.
            normed = [*(self.model.model.norm(state) for state in states[:-1]), states[-1]]
        return {}, {"hidden": np.stack([normed[depth].float().numpy() for depth in arrays["depths"]])}

    def _forward(self, tokens: torch.Tensor, cache: Any) -> tuple[torch.Tensor, dict[str, np.ndarray], Any]:
        """Return logits [B, T, V], for an MoE `routed_experts` [B, T, L, k], and the extended cache."""
        self.chosen.clear()
        with torch.inference_mode():
            answer = self.model(input_ids=tokens, past_key_values=cache, use_cache=True)
        layers = [chosen.reshape(*tokens.shape, -1).numpy() for chosen in self.chosen]
        experts = {"routed_experts": np.stack(layers, 2).astype(np.int32)} if layers else {}
        return answer.logits, experts, answer.past_key_values


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("SIMLAB_TORCH_THREADS", "1")))
    serve(Server)
