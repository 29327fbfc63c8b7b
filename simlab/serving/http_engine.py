"""An HTTP server with OpenAI's completions protocol as an engine."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from jaxtyping import Int

from simlab.core.json_value import Json
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.serving.protocol import (
    EngineError,
    EngineScores,
    Samples,
    SamplingRequest,
    assert_parity,
    build_samples,
    check_logps,
)

Answer = TypeVar("Answer")
# vLLM's prefix of a token under `return_tokens_as_token_ids`.
PREFIX = "token_id:"


class HttpEngine:
    """The server at `url` (without `/v1`) with its `model`, by default the first one.

    Sends prompts as token ids, one request each, up to `parallel` at a time. Reads token ids with vLLM's
    option `return_tokens_as_token_ids`. Start vLLM with `--logprobs-mode raw_logprobs`. The protocol cannot
    load weights: `sync_weights` only checks that the server has the given ones, up to `parity` nats.
    `timeout` is in seconds per request; `key` is sent as a bearer token.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        key: str | None = None,
        parity: float = 0.3,
        parallel: int = 16,
        timeout: float = 600.0,
    ):
        """Connect. Raises `EngineError` if the server is unreachable or lacks `model`."""
        self.url, self.key, self.parity, self.timeout = url.rstrip("/"), key, parity, timeout
        self.name = f"server {self.url}"
        self.parallel = parallel
        served = [str(entry.get("id")) for entry in self._request("models").get("data", [])]
        if not served or (model is not None and model not in served):
            raise EngineError(
                f"model of {self.name} must be one of {', '.join(served) or 'none'}, got {model!r}."
            )
        self.model = model or served[0]

    def describe(self) -> Mapping[str, Json]:
        """Return URL and model."""
        return {"engine": "http", "url": self.url, "model": self.model}

    def sync_weights(self, config: TransformerConfig, params: Params) -> float:
        """Check the served weights against `params`; sends nothing."""
        return assert_parity(self, self.name, config, params, self.parity)

    def generate(self, prompts: Int[np.ndarray, "N P"], sampling: SamplingRequest) -> Samples:
        """Sample one response to each prompt, each with its own seed."""

        def respond(number: int) -> tuple[np.ndarray, np.ndarray]:
            choice = self._complete(
                prompts[number],
                max_tokens=sampling.max_tokens,
                temperature=float(sampling.temperature),
                seed=sampling.seed * 2**20 + number,
                stop_token_ids=[sampling.eos_token_id],
                ignore_eos=True,
                skip_special_tokens=False,
            )
            tokens, logps = self._parse_choice(choice)
            if not 0 < len(tokens) <= sampling.max_tokens:
                raise EngineError(
                    f"{self.name} must return 1 to {sampling.max_tokens} tokens, got {len(tokens)}."
                )
            padding = 0, sampling.max_tokens - len(tokens)
            return np.pad(tokens, padding, constant_values=sampling.pad_token_id), np.pad(logps, padding)

        tokens, logps = zip(*self._map(respond, len(prompts)), strict=True)
        return build_samples(self.name, np.stack(tokens), np.stack(logps), None, sampling, len(prompts))

    def score(self, prompts: Int[np.ndarray, "N P"], responses: Int[np.ndarray, "N T"]) -> EngineScores:
        """Score in one pass: the server echoes the prompt with its log-probs."""
        texts = np.concatenate([prompts, responses], axis=1)

        def score_row(number: int) -> np.ndarray:
            choice = self._complete(texts[number], max_tokens=1, temperature=0.0, echo=True)
            tokens, logps = self._parse_choice(choice)
            if not np.array_equal(tokens[: texts.shape[1]], texts[number]):
                raise EngineError(f"{self.name} must echo the tokens it was sent; it returned others.")
            return logps[prompts.shape[1] : texts.shape[1]]

        logps = np.stack(self._map(score_row, len(texts)))
        return EngineScores(check_logps(self.name, logps, responses.shape), None)

    def _map(self, work: Callable[[int], Answer], count: int) -> list[Answer]:
        with ThreadPoolExecutor(self.parallel) as pool:
            return list(pool.map(work, range(count)))

    def _complete(self, prompt: np.ndarray, **options: object) -> Json:
        body = {"model": self.model, "prompt": prompt.tolist(), "logprobs": 1, **options}
        reply = self._request("completions", {**body, "return_tokens_as_token_ids": True})
        try:
            return reply["choices"][0]
        except (KeyError, IndexError, TypeError):
            raise EngineError(f"{self.name} returned no completion: {str(reply)[:200]}") from None

    def _parse_choice(self, choice: Json) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and log-probabilities of a choice; NaN for a first token, which has none."""
        reported = choice.get("logprobs") or {}
        names, logps = reported.get("tokens"), reported.get("token_logprobs")
        if not names or not logps or len(names) != len(logps):
            raise EngineError(f"{self.name} returned no log-probs.")
        if not all(name.startswith(PREFIX) for name in names):
            raise EngineError(
                f"{self.name} returned token texts, not ids. It must support return_tokens_as_token_ids."
            )
        tokens = np.asarray([int(name.removeprefix(PREFIX)) for name in names], np.int32)
        return tokens, np.asarray([np.nan if x is None else x for x in logps], np.float32)

    def _request(self, path: str, content: Mapping[str, Json] | None = None) -> Json:
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self.url}/v1/{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            message = error.read().decode(errors="replace")[:300]
            raise EngineError(f"{self.name} rejected {path!r} with status {error.code}: {message}") from error
        except TimeoutError as error:
            raise EngineError(f"{self.name} did not answer {path!r} within {self.timeout:g} s.") from error
        except (urllib.error.URLError, OSError) as error:
            raise EngineError(
                f"{self.name} is unreachable ({error}). "
                "Start it: vllm serve CHECKPOINT --logprobs-mode raw_logprobs"
            ) from error
        except ValueError as error:
            raise EngineError(f"{self.name} must answer {path!r} with JSON.") from error
