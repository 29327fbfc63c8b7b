"""vLLM behind a pipe, in this process: loads and reloads checkpoints, samples, scores, tells the experts.

Runs with the interpreter of an environment that has vLLM; requests come on standard input, answers go to
standard output, everything else to standard error.
"""

import os
import platform
from functools import partial
from importlib.metadata import version
from typing import Any

# Before vLLM is imported: the engine in this process, so that its model can be reached.
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)

import numpy as np  # noqa: E402
import torch  # pyright: ignore[reportMissingImports]  # noqa: E402
import vllm  # pyright: ignore[reportMissingImports]  # noqa: E402
from messages import serve  # pyright: ignore[reportMissingImports]  # noqa: E402


class Routing:
    """The experts of every token of a batch, in whatever pieces and order vLLM reads them."""

    def __init__(self, worker: Any):
        """Watch the routers of the worker's model; a dense model has none."""
        self.runner = worker.model_runner
        self.step: list[np.ndarray] = []
        self.read: dict[str, dict[int, np.ndarray]] = {}
        routers = [module.router for module in self.runner.model.modules() if hasattr(module, "router")]
        self.watches = bool(routers)
        for router in routers:
            router.set_capture_fn(lambda chosen: self.step.append(chosen.numpy().copy()))
        if routers:
            self.runner.model.register_forward_hook(self._sort, with_kwargs=True)

    def clear(self) -> None:
        """Forget what was read."""
        self.step.clear()
        self.read.clear()

    def _sort(self, _model: Any, _inputs: Any, named: dict[str, Any], _output: Any) -> None:
        """Give each row of the step to its request and position."""
        layers = np.stack(self.step, axis=1)
        self.step.clear()
        positions = named["positions"].numpy()
        requests, starts = self.runner.input_batch.req_ids, self.runner.query_start_loc.np
        for number, request in enumerate(requests):
            rows = slice(starts[number], starts[number + 1])
            read = self.read.setdefault(request, {})
            read.update(zip(positions[rows].tolist(), layers[rows], strict=True))

    def of(self, request: str, length: int) -> np.ndarray:
        """Return the experts [length, L, k] of a request, its last ones repeated where it ended early."""
        found = next(
            read for name, read in self.read.items() if name.rpartition("-")[0] == request or name == request
        )
        return np.stack([found[min(position, max(found))] for position in range(length)])


class Server:
    """One engine; other weights of the same shape are reloaded into it, anything else makes a new one."""

    def __init__(self):
        """Start without a model."""
        self.llm: Any = None
        self.routing: Any = None
        self.built: Any = None

    def describe(self, _header: dict, _arrays: dict) -> tuple[dict, dict]:
        """Return versions."""
        versions = {"python": platform.python_version(), "torch": torch.__version__, "vllm": vllm.__version__}
        return {**versions, "transformers": version("transformers")}, {}

    def load(self, header: dict, _arrays: dict) -> tuple[dict, dict]:
        """Load the checkpoint `folder` as `dtype` with a KV cache of `kv_cache_dtype`.

        `shape` says which checkpoints may take each other's place, `logprobs_mode` which log-probabilities
        are reported: those of the raw logits if it is not there. After a reload, vLLM on a CPU reads
        experts as packed that are not, and keeps the old packed head where it is tied; `repack` false leaves
        it at that. `reload` false makes a new engine of any checkpoint.
        """
        built = {name: header.get(name) for name in ("shape", "dtype", "kv_cache_dtype", "logprobs_mode")}
        if built != self.built or not header["reload"]:
            self._build(header)
            self.built = built
        else:
            self.llm.collective_rpc(partial(_reload, folder=header["folder"], repack=header["repack"]))
        return {}, {}

    def _build(self, header: dict) -> None:
        self.llm, self.routing = None, None
        self.llm = vllm.LLM(
            model=header["folder"],
            dtype=header["dtype"],
            kv_cache_dtype=header["kv_cache_dtype"],
            logprobs_mode=header.get("logprobs_mode", "raw_logprobs"),
            enable_prefix_caching=False,
            enforce_eager=True,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        self.routing = self.llm.collective_rpc(Routing)[0]

    def generate(self, header: dict, arrays: dict) -> tuple[dict, dict]:
        """Sample up to `length` tokens behind each of `prompts` [N, P], stopped by `end`, within `top_p`."""
        params = [
            self._params(
                max_tokens=header["length"],
                temperature=header["temperature"],
                top_p=header.get("top_p", 1.0),
                # One stream of random numbers per response.
                seed=header["seed"] * 2**20 + number,
                stop_token_ids=[header["end"]],
                logprobs=0,
            )
            for number in range(len(arrays["prompts"]))
        ]
        answers = self._ask(arrays["prompts"], params)
        shape = len(answers), header["length"]
        tokens, logps = np.full(shape, header["pad"], np.int32), np.full(shape, np.nan, np.float32)
        for number, answer in enumerate(answers):
            said = answer.outputs[0]
            tokens[number, : len(said.token_ids)] = said.token_ids
            logps[number, : len(said.token_ids)] = _logps(said.token_ids, said.logprobs)
        read = arrays["prompts"].shape[1] + header["length"] - 1
        return {}, {"tokens": tokens, "logps": logps, **self._experts(answers, read)}

    def score(self, _header: dict, arrays: dict) -> tuple[dict, dict]:
        """Return log-probabilities of `tokens` [B, S] from position `first` on, and experts."""
        tokens, first = arrays["tokens"], int(arrays["first"])
        answers = self._ask(tokens, self._params(max_tokens=1, prompt_logprobs=0))
        found = [
            _logps(row[first:].tolist(), answer.prompt_logprobs[first:])
            for row, answer in zip(tokens, answers, strict=True)
        ]
        return {}, {"logps": np.asarray(found, np.float32), **self._experts(answers, tokens.shape[1] - 1)}

    def _ask(self, prompts: np.ndarray, params: Any) -> list[Any]:
        if self.llm is None:
            raise RuntimeError("no weights have been loaded")
        # A step that fails leaves its requests in the queue, and the next call would never end.
        vocabulary = self.llm.model_config.get_vocab_size()
        if prompts.min() < 0 or prompts.max() >= vocabulary:
            raise IndexError(f"token {prompts.max()} in a vocabulary of {vocabulary}")
        self.routing.clear()
        asked = [{"prompt_token_ids": row.tolist()} for row in prompts]
        try:
            return self.llm.generate(asked, params, use_tqdm=False)
        except Exception:
            self.llm = self.built = None
            raise

    def _experts(self, answers: list[Any], read: int) -> dict[str, np.ndarray]:
        """Return `experts` [N, read, L, k] of a mixture; behind the end of a response, its last."""
        if not self.routing.watches:
            return {}
        return {
            "experts": np.stack([self.routing.of(answer.request_id, read) for answer in answers]).astype(
                np.int32
            )
        }

    @staticmethod
    def _params(**options: Any) -> Any:
        return vllm.SamplingParams(detokenize=False, ignore_eos=True, **options)


def _logps(tokens: list[int], reported: Any) -> list[float]:
    """Return the reported log-probability of each token, NaN where there is none."""
    if reported is None or len(reported) != len(tokens):
        return [float("nan")] * len(tokens)
    return [
        place[token].logprob if place and token in place else float("nan")
        for token, place in zip(tokens, reported, strict=True)
    ]


def _reload(worker: Any, folder: str, repack: bool) -> None:
    """Load other weights into the worker's model, and pack those that vLLM forgets to pack again."""
    worker.reload_weights(weights_path=folder)
    model = worker.model_runner.model
    if not repack:
        return
    for module in model.modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        if kernel is not None and hasattr(module, "w13_weight"):
            kernel.fused_experts.process_weights_after_loading(module)
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


if __name__ == "__main__":
    serve(Server)
