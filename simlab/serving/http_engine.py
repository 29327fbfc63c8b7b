"""A server that speaks OpenAI's completions protocol over HTTP, as an engine of the lab."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from simlab.core.manifest import Json
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.serving.protocol import (
    EngineError,
    Sampled,
    Sampling,
    Scored,
    assert_parity,
    checked_logps,
    sampled,
)

# How vLLM writes a token where it was asked for `return_tokens_as_token_ids`.
PREFIX = "token_id:"


class HttpEngine:
    """The server at `url` (up to and without `/v1`), asked for its `model`, its first one if not named.

    Prompts go as token ids, one request each, up to `parallel` at a time; ids come back by vLLM's option
    `return_tokens_as_token_ids`. Start vLLM with `--logprobs-mode raw_logprobs`. The protocol has no weights:
    `sync_weights` only checks that those of the server are the given ones, up to `parity` nats. `timeout` is
    in seconds, for each answer; `key` is sent as a bearer token.
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
        """Ask what is served. Raises `EngineError` for no server, or one without `model`."""
        self.url, self.key, self.parity, self.timeout = url.rstrip("/"), key, parity, timeout
        self.name = f"server {self.url}"
        self.parallel = parallel
        served = [str(entry.get("id")) for entry in self._ask("models").get("data", [])]
        if not served or (model is not None and model not in served):
            raise EngineError(
                f"{self.name} does not serve {model or 'anything'!r}; it has: {', '.join(served)}"
            )
        self.model = model or served[0]

    def describe(self) -> Mapping[str, Json]:
        """Return address and model."""
        return {"engine": "http", "url": self.url, "model": self.model}

    def sync_weights(self, config: TransformerConfig, params: Params) -> float:
        """Send nothing; compare the probe of what is served with that of `params`."""
        return assert_parity(self, self.name, config, params, self.parity)

    def generate(self, prompts: np.ndarray, sampling: Sampling) -> Sampled:
        """Sample one response to each prompt, each with a seed of its own."""

        def respond(number: int) -> tuple[np.ndarray, np.ndarray]:
            choice = self._complete(
                prompts[number],
                max_tokens=sampling.length,
                temperature=float(sampling.temperature),
                seed=sampling.seed * 2**20 + number,
                stop_token_ids=[sampling.end],
                ignore_eos=True,
                skip_special_tokens=False,
            )
            tokens, logps = self._reported(choice)
            if not 0 < len(tokens) <= sampling.length:
                raise EngineError(
                    f"{self.name} returned {len(tokens)} tokens, asked for 1 to {sampling.length}"
                )
            missing = sampling.length - len(tokens)
            return np.pad(tokens, (0, missing), constant_values=sampling.pad), np.pad(logps, (0, missing))

        tokens, logps = zip(*self._each(respond, len(prompts)), strict=True)
        return sampled(self.name, np.stack(tokens), np.stack(logps), None, sampling, len(prompts))

    def score(self, prompts: np.ndarray, responses: np.ndarray) -> Scored:
        """Score in one pass: the prompt is echoed with its log-probs."""
        texts = np.concatenate([prompts, responses], axis=1)

        def judge(number: int) -> np.ndarray:
            choice = self._complete(texts[number], max_tokens=1, temperature=0.0, echo=True)
            tokens, logps = self._reported(choice)
            if not np.array_equal(tokens[: texts.shape[1]], texts[number]):
                raise EngineError(f"{self.name} echoed other tokens than it was sent")
            return logps[prompts.shape[1] : texts.shape[1]]

        logps = np.stack(self._each(judge, len(texts)))
        return Scored(checked_logps(self.name, logps, responses.shape), None)

    def _each(self, work: Any, count: int) -> list[Any]:
        with ThreadPoolExecutor(self.parallel) as pool:
            return list(pool.map(work, range(count)))

    def _complete(self, prompt: np.ndarray, **options: Any) -> Any:
        asked = {"model": self.model, "prompt": prompt.tolist(), "logprobs": 1, **options}
        answer = self._ask("completions", {**asked, "return_tokens_as_token_ids": True})
        try:
            return answer["choices"][0]
        except (KeyError, IndexError, TypeError):
            raise EngineError(f"{self.name} returned no completion: {str(answer)[:200]}") from None

    def _reported(self, choice: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and log-probabilities of a choice; a first token has none: NaN."""
        found = choice.get("logprobs") or {}
        names, logps = found.get("tokens"), found.get("token_logprobs")
        if not names or not logps or len(names) != len(logps):
            raise EngineError(f"{self.name} returned no log-probs for its tokens")
        if not all(name.startswith(PREFIX) for name in names):
            raise EngineError(
                f"{self.name} returned token texts, no ids: it ignores return_tokens_as_token_ids"
            )
        tokens = np.asarray([int(name.removeprefix(PREFIX)) for name in names], np.int32)
        return tokens, np.asarray([np.nan if x is None else x for x in logps], np.float32)

    def _ask(self, path: str, content: Mapping[str, Json] | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self.url}/v1/{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:300]
            raise EngineError(f"{self.name} refused {path!r} with {error.code}: {said}") from error
        except TimeoutError as error:
            raise EngineError(f"{self.name} did not answer {path!r} within {self.timeout:g} s") from error
        except (urllib.error.URLError, OSError) as error:
            raise EngineError(
                f"{self.name} cannot be reached ({error}); start one with: vllm serve CHECKPOINT "
                "--logprobs-mode raw_logprobs"
            ) from error
        except ValueError as error:
            raise EngineError(f"{self.name} answered {path!r} with something else than JSON") from error
