"""vLLM behind a pipe: loads and reloads checkpoints, samples, scores, reports the routed experts.

Runs with the interpreter of an environment that has vLLM; requests come on standard input, answers go to
standard output, everything else to standard error.
"""

import os
import platform
from functools import partial
from importlib.metadata import version
from typing import Any

# Set before the import of vLLM: keep the engine in this process, so that its model is accessible.
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
    """Record the experts of every token of a batch, in the order in which vLLM processes them."""

    def __init__(self, worker: "vllm.v1.worker.worker_base.WorkerBase"):
        """Attach to the routers of the worker's model; a dense model has none."""
        self.runner = worker.model_runner
        self.step: list[np.ndarray] = []
        self.read: dict[str, dict[int, np.ndarray]] = {}
        routers = [module.router for module in self.runner.model.modules() if hasattr(module, "router")]
        self.has_routers = bool(routers)
        for router in routers:
            router.set_capture_fn(lambda chosen: self.step.append(chosen.numpy().copy()))
        if routers:
            self.runner.model.register_forward_hook(self._sort, with_kwargs=True)

    def clear(self) -> None:
        """Drop all records."""
        self.step.clear()
        self.read.clear()

    def _sort(self, _model: Any, _inputs: Any, named: dict[str, Any], _output: Any) -> None:
        """Assign each row of the step to its request and position."""
        layers = np.stack(self.step, axis=1)
        self.step.clear()
        positions = named["positions"].numpy()
        requests, starts = self.runner.input_batch.req_ids, self.runner.query_start_loc.np
        for number, request in enumerate(requests):
            rows = slice(starts[number], starts[number + 1])
            read = self.read.setdefault(request, {})
            read.update(zip(positions[rows].tolist(), layers[rows], strict=True))

    def get_experts(self, request: str, length: int) -> np.ndarray:
        """Return the experts [length, L, k] of a request; repeats the last ones after an early end."""
        experts = next(
            read for name, read in self.read.items() if name.rpartition("-")[0] == request or name == request
        )
        return np.stack([experts[min(position, max(experts))] for position in range(length)])


class Server:
    """One engine; reloads weights of the same shape in place, else builds a new engine."""

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

        Checkpoints of equal `shape` are reloaded in place, unless `reload` is false. `logprobs_mode` defaults
        to the log-probabilities of the raw logits. After a reload, vLLM on a CPU reads unpacked experts as
        packed and keeps the old packed head if it is tied; `repack` repairs both.
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
        """Sample up to `max_tokens` tokens after each of `prompts` [N, P], stopped by `eos_token_id`."""
        params = [
            self._params(
                max_tokens=header["max_tokens"],
                temperature=header["temperature"],
                top_p=header.get("top_p", 1.0),
                # One random stream per response.
                seed=header["seed"] * 2**20 + number,
                stop_token_ids=[header["eos_token_id"]],
                logprobs=0,
            )
            for number in range(len(arrays["prompts"]))
        ]
        answers = self._generate(arrays["prompts"], params)
        shape = len(answers), header["max_tokens"]
        tokens, logps = np.full(shape, header["pad_token_id"], np.int32), np.full(shape, np.nan, np.float32)
        for number, answer in enumerate(answers):
            output = answer.outputs[0]
            tokens[number, : len(output.token_ids)] = output.token_ids
            logps[number, : len(output.token_ids)] = _logps(output.token_ids, output.logprobs)
        read = arrays["prompts"].shape[1] + header["max_tokens"] - 1
        return {}, {"tokens": tokens, "logps": logps, **self._experts(answers, read)}

    def score(self, _header: dict, arrays: dict) -> tuple[dict, dict]:
        """Return log-probabilities of `tokens` [B, S] from position `first` on, and experts."""
        tokens, first = arrays["tokens"], int(arrays["first"])
        answers = self._generate(tokens, self._params(max_tokens=1, prompt_logprobs=0))
        logps = [
            _logps(row[first:].tolist(), answer.prompt_logprobs[first:])
            for row, answer in zip(tokens, answers, strict=True)
        ]
        return {}, {"logps": np.asarray(logps, np.float32), **self._experts(answers, tokens.shape[1] - 1)}

    def _generate(self, prompts: np.ndarray, params: Any) -> list[Any]:
        if self.llm is None:
            raise RuntimeError("No weights are loaded.")
        # A failing step leaves its requests in the queue, and the next call would hang.
        vocabulary = self.llm.model_config.get_vocab_size()
        if prompts.min() < 0 or prompts.max() >= vocabulary:
            raise IndexError(f"tokens must be below {vocabulary}, got {prompts.max()}.")
        self.routing.clear()
        inputs = [{"prompt_token_ids": row.tolist()} for row in prompts]
        try:
            return self.llm.generate(inputs, params, use_tqdm=False)
        except Exception:
            self.llm = self.built = None
            raise

    def _experts(self, answers: list[Any], read: int) -> dict[str, np.ndarray]:
        """Return `routed_experts` [N, read, L, k] of an MoE; after the end of a response, its last."""
        if not self.routing.has_routers:
            return {}
        experts = [self.routing.get_experts(answer.request_id, read) for answer in answers]
        return {"routed_experts": np.stack(experts).astype(np.int32)}

    @staticmethod
    def _params(**options: Any) -> Any:
        return vllm.SamplingParams(detokenize=False, ignore_eos=True, **options)


def _logps(tokens: list[int], reported: Any) -> list[float]:
    """Return the reported log-probability of each token, NaN if missing."""
    if reported is None or len(reported) != len(tokens):
        return [float("nan")] * len(tokens)
    return [
        entry[token].logprob if entry and token in entry else float("nan")
        for token, entry in zip(tokens, reported, strict=True)
    ]


def _reload(worker: "vllm.v1.worker.worker_base.WorkerBase", folder: str, repack: bool) -> None:
    """Load other weights into the worker's model; pack the weights that vLLM does not pack again."""
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
