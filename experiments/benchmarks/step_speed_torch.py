"""Run the training step in PyTorch: same model, emulated FP8 rounding, KV-cache decode, minibatch updates.

This implementation is optimized: weights are quantized once per rollout; decode step, scoring, and loss with
gradient are compiled; AdamW is fused; subnormals are flushed. Unlike simlab, it computes no metrics.
"""

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from jaxtyping import PyTree
from torch import Tensor  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.tasks.vocabulary import DIGIT, EOS_TOKEN_ID, LETTER, PAD_TOKEN_ID

Weights = dict[str, PyTree[Tensor]]


class Float32:
    """The engine that rounds nothing."""

    @staticmethod
    def store(x: Tensor) -> Tensor:
        """Return x as a 16-bit kernel would store it; this engine does not round."""
        return x

    @staticmethod
    def prepare(w: Tensor) -> Tensor:
        """Return weights in the form that the projections read."""
        return w

    @staticmethod
    def project(x: Tensor, w: Tensor) -> Tensor:
        """Multiply activations by prepared weights."""
        return x @ w


class TruncatedFp8:
    """simlab's `fp8-s4-truncated`: operands of projections truncated to 4 mantissa bits, the rest in BF16."""

    @staticmethod
    def store(x: Tensor) -> Tensor:
        """Round to BF16, to nearest even. The compiler would remove casts to BF16 and back."""
        bits = x.view(torch.int32)
        return (bits + 0x7FFF + ((bits >> 16) & 1) & -0x10000).view(torch.float32)

    @classmethod
    def prepare(cls, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return elements and one scale per column."""
        return cls._cut(w, 0, 0.0)

    @classmethod
    def project(cls, x: Tensor, w: tuple[Tensor, Tensor]) -> Tensor:
        """Scale each token by its largest magnitude, truncate, multiply, scale back and store."""
        elements, scale = cls._cut(x, -1, 1 / (448 * 512))
        return cls.store((elements @ w[0]) * w[1] * scale)

    @staticmethod
    def _cut(x: Tensor, dim: int, smallest: float) -> tuple[Tensor, Tensor]:
        amax = x.abs().amax(dim, keepdim=True)
        scale = torch.where(amax == 0, 1.0, (amax / 448).clamp_min(smallest))
        x = x / scale
        normal = (x.view(torch.int32) & -0x80000).view(torch.float32)
        return torch.where(x.abs() < 2.0**-6, torch.trunc(x * 1024) / 1024, normal), scale


Engine = type[Float32] | type[TruncatedFp8]


class TorchReference:
    """A policy and its training step; sizes are those of `model`, numbers those of the flagship."""

    def __init__(
        self,
        model: TransformerConfig,
        params: Params,
        response_length: int,
        engine: Engine,
    ):
        """Copy `params`; `engine` samples, training is in float32."""
        torch.set_flush_denormal(True)
        self.model, self.engine, self.length = model, engine, response_length
        self.params = jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf)).requires_grad_(), params)
        self.leaves = [self.params["embedding"], self.params["norm"]]
        self.leaves += [leaf for layer in self.params["layers"] for leaf in layer.values()]
        self.optimizer = torch.optim.AdamW(
            self.leaves, lr=2.5e-4, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, fused=True
        )
        self.decode = torch.compile(self._decode, dynamic=False)
        self.score = torch.compile(self.response_logps, dynamic=False)
        self.loss = torch.compile(self._loss, dynamic=False)

    def step(self, prompts: Tensor, group_size: int, minibatches: int) -> None:
        """Sample, score and update."""
        trajectory = self.rollout(prompts, group_size)
        with torch.no_grad():
            old = self.score(Float32, *trajectory[:2])
        self.update(trajectory, old, group_size, minibatches)

    def rollout(self, prompts: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return prompts and responses, [B, P] and [B, T], and the rewards [B]."""
        with torch.no_grad():
            weights = self._prepare(self.engine)
            count, start = prompts.shape
            caches = self._empty_caches(count, start + self.length)
            hidden = self._extend(weights, self.engine, prompts, 0, caches)[:, -1]
            caches = [x.repeat_interleave(group_size, 0) for x in caches]
            hidden = hidden.repeat_interleave(group_size, 0)
            uniforms = torch.rand(self.length, count * group_size, 1)
            token, logp = self._draw(weights, hidden, uniforms[0])
            ended, tokens, logps = token == EOS_TOKEN_ID, [token], [logp]
            for index in range(1, self.length):
                position = torch.tensor(start + index - 1)
                token, logp, ended = self.decode(weights, caches, token, ended, uniforms[index], position)
                tokens.append(token)
                logps.append(logp)
            prompts = prompts.repeat_interleave(group_size, 0)
            responses = torch.stack(tokens, 1)
            return prompts, responses, _rewards(prompts, responses)

    def update(self, trajectory: tuple, old: Tensor, group_size: int, minibatches: int) -> None:
        """Make one clipped update per minibatch of complete groups."""
        prompts, responses, rewards = trajectory
        groups = rewards.view(-1, group_size)
        centered = groups - groups.mean(1, keepdim=True)
        advantages = (centered / (groups.std(1, keepdim=True) + 1e-6)).reshape(-1)
        parts = zip(*(x.chunk(minibatches) for x in (prompts, responses, advantages, old)), strict=True)
        for part in parts:
            self.optimizer.zero_grad(set_to_none=True)
            self.loss(*part).backward()
            torch.nn.utils.clip_grad_norm_(self.leaves, 1.0)
            self.optimizer.step()

    def _loss(self, prompts: Tensor, responses: Tensor, advantages: Tensor, old: Tensor) -> Tensor:
        """GRPO: clipped surrogate, mean over the tokens of a sequence, then over sequences."""
        ratio = torch.exp(self.response_logps(Float32, prompts, responses) - old)
        advantages = advantages[:, None]
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        ends = (responses == EOS_TOKEN_ID).to(torch.float32)
        mask = (ends.cumsum(1) - ends == 0).to(torch.float32)
        return -((surrogate * mask).sum(1) / mask.sum(1)).mean()

    def response_logps(self, engine: Engine, prompts: Tensor, responses: Tensor) -> Tensor:
        """Return log-probabilities [B, T] of responses under an engine."""
        weights = self._prepare(engine)
        tokens = torch.cat([prompts, responses[:, :-1]], 1)
        hidden = self._extend(weights, engine, tokens, 0, None)[:, prompts.shape[1] - 1 :]
        logits = engine.store(hidden @ weights["head"])
        return torch.log_softmax(logits, -1).gather(-1, responses[..., None])[..., 0]

    def _decode(
        self, weights: Weights, caches: list, last: Tensor, ended: Tensor, uniform: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self._extend(weights, self.engine, last[:, None], position, caches)[:, 0]
        token, logp = self._draw(weights, hidden, uniform)
        token = torch.where(ended, PAD_TOKEN_ID, token)
        return token, logp, ended | (token == EOS_TOKEN_ID)

    def _draw(self, weights: Weights, hidden: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        logps = torch.log_softmax(self.engine.store(hidden @ weights["head"]), -1)
        below = logps.exp().cumsum(-1)
        token = (below <= uniform * below[:, -1:]).sum(-1)
        return token, logps.gather(-1, token[:, None])[:, 0]

    def _prepare(self, engine: Engine) -> Weights:
        def layer(weights: Weights) -> Weights:
            return {k: (engine.prepare if w.ndim == 2 else engine.store)(w) for k, w in weights.items()}

        embedding = engine.store(self.params["embedding"])
        return {
            "embedding": embedding,
            "head": embedding.T,
            "norm": engine.store(self.params["norm"]),
            "layers": [layer(weights) for weights in self.params["layers"]],
        }

    def _empty_caches(self, batch: int, length: int) -> list[Tensor]:
        """Keys and values of every layer in turn."""
        shape = batch, self.model.num_key_value_heads, length, self.model.head_dim
        return [torch.zeros(shape) for _ in range(2 * self.model.num_hidden_layers)]

    def _extend(
        self, weights: Weights, engine: Engine, tokens: Tensor, start: Tensor | int, caches: list | None
    ) -> Tensor:
        """Return normed hidden states [B, T, D] of tokens after those in the caches."""
        positions = start + torch.arange(tokens.shape[1])
        keys = torch.arange(tokens.shape[1] if caches is None else caches[0].shape[2])
        visible = keys[None] <= positions[:, None]
        angles = self._angles(positions)
        residual = read = weights["embedding"][tokens]
        for number, layer in enumerate(weights["layers"]):
            x = self._norm(read, layer["attention_norm"], engine)
            cache = None if caches is None else caches[2 * number : 2 * number + 2]
            read = residual + self._attention(layer, engine, x, angles, positions, visible, cache)
            residual = engine.store(read)
            x = self._norm(read, layer["mlp_norm"], engine)
            gate, up = engine.project(x, layer["gate_up"]).chunk(2, -1)
            x = engine.store(engine.store(functional.silu(gate)) * up)
            read = residual + engine.project(x, layer["down"])
            residual = engine.store(read)
        return self._norm(read, weights["norm"], engine)

    def _norm(self, x: Tensor, weight: Tensor, engine: Engine) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.model.rms_norm_eps)
        return engine.store(engine.store(x * scale) * weight)

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        width = self.model.head_dim
        frequencies = self.model.rope_theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
        angles = positions[:, None, None] * frequencies.repeat(2)
        return angles.cos(), angles.sin()

    def _attention(
        self,
        layer: Weights,
        engine: Engine,
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        positions: Tensor,
        visible: Tensor,
        cache: list | None,
    ) -> Tensor:
        batch, length, _ = x.shape
        heads = engine.project(x, layer["qkv"]).view(batch, length, -1, self.model.head_dim)
        queries, keys, values = heads.split(self.model.heads, 2)
        queries = self._rotate(self._norm(queries, layer["q_norm"], engine), angles, engine)
        keys = self._rotate(self._norm(keys, layer["k_norm"], engine), angles, engine)
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        if cache is not None:
            keys = cache[0].index_copy_(2, positions, keys)
            values = cache[1].index_copy_(2, positions, values)
        share = self.model.queries_per_key
        rows = queries.view(batch, length, -1, share, self.model.head_dim).permute(0, 2, 3, 1, 4)
        scores = rows.flatten(2, 3) @ keys.transpose(2, 3) * self.model.head_dim**-0.5
        scores = scores.masked_fill(~visible.repeat(share, 1), -torch.inf)
        exponentials = engine.store(torch.exp(scores - scores.amax(-1, keepdim=True)))
        mixed = engine.store(exponentials @ values / exponentials.sum(-1, keepdim=True))
        mixed = mixed.view(batch, -1, share, length, self.model.head_dim).permute(0, 3, 1, 2, 4)
        return engine.project(mixed.flatten(2), layer["o"])

    @staticmethod
    def _rotate(x: Tensor, angles: tuple[Tensor, Tensor], engine: Engine) -> Tensor:
        first, second = x.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
        return engine.store(engine.store(x * angles[0]) + engine.store(turned * angles[1]))


def _rewards(prompts: Tensor, responses: Tensor) -> Tensor:
    """Return 1 for the correct sum after leading letters, as the task `add` does."""
    width = (prompts.shape[1] - 2) // 2
    powers = 10 ** torch.arange(width, -1, -1)
    digits = prompts - DIGIT
    total = (digits[:, :width] + digits[:, width + 1 : -1]) @ powers[1:]
    answer = torch.cat(
        [total[:, None] // powers % 10 + DIGIT, torch.full_like(total[:, None], EOS_TOKEN_ID)], 1
    )
    letters = (responses >= LETTER) & (responses < LETTER + 10)
    used = letters.cumprod(1).sum(1, keepdim=True)
    indices = (used + torch.arange(answer.shape[1])) % responses.shape[1]
    return (responses.gather(1, indices) == answer).all(1).to(torch.float32)
