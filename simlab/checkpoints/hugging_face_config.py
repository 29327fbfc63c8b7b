"""Convert between Hugging Face's `config.json` and `TransformerConfig`; reject unsupported options."""

from collections.abc import Mapping
from dataclasses import asdict
from json import loads
from pathlib import Path

from simlab.core.catalog import lookup
from simlab.core.json_value import Json
from simlab.models.config import TransformerConfig

ARCHITECTURES = {
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen2ForCausalLM": "qwen2",
    "LlamaForCausalLM": "llama",
}
"""Architecture -> model type. Qwen2.5 is Qwen2, SmolLM2 is Llama."""

# Options of these architectures that change the computation, with their neutral values.
_NEUTRAL: dict[str, tuple[Json, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1, 1.0),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
    "quantization_config": (None,),
}


class JsonObject:
    """A JSON object of a file with typed access to its values."""

    def __init__(self, values: Mapping[str, Json], file: Path):
        """Wrap `values`; errors name `file`."""
        self.values, self.file = values, file

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a positive integer; raise `ValueError` for other values."""
        return self._get(name, default, lambda x: type(x) is int and x > 0, "a positive integer")

    def number(self, name: str, default: float) -> float:
        """Return a positive finite number; raise `ValueError` for other values."""
        return float(
            self._get(
                name, default, lambda x: type(x) in (int, float) and 0 < x < float("inf"), "a positive number"
            )
        )

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean; raise `ValueError` for other values."""
        return self._get(name, default, lambda x: type(x) is bool, "true or false")

    def _get(self, name, default, accepts, words):
        value = self.values.get(name)
        value = default if value is None else value
        if value is None:
            raise ValueError(f"{self.file} must have {name!r}.")
        if not accepts(value):
            raise ValueError(f"{self.file}: {name} must be {words}, got {value!r}.")
        return value


def read_json_object(file: Path) -> dict[str, Json]:
    """Return the JSON object in a file of a Hugging Face checkpoint.

    Raises:
        FileNotFoundError, ValueError: The file does not exist, or holds something else.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist. A Hugging Face checkpoint needs this file.")
    try:
        values = loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} is not a JSON object.")
    return values


def parse_config_json(values: Mapping[str, Json], file: Path) -> TransformerConfig:
    """Return the config for the `values` of a `config.json`.

    Raises:
        ValueError: The architecture or an option is not supported.
    """
    model_type = _model_type(values, file)
    for name, neutral in _NEUTRAL.items():
        value = values.get(name, neutral[0])
        if not any(value == allowed for allowed in neutral):
            raise _build_error(file, name, value)
    layer_types = values.get("layer_types") or []
    if set(layer_types) - {"full_attention"}:
        raise _build_error(file, "layer_types", layer_types)
    # In Qwen3 and Llama this option also adds a bias to the output projection. Qwen2 always has biases.
    if model_type != "qwen2" and values.get("attention_bias"):
        raise _build_error(file, "attention_bias", True)
    json = JsonObject(values, file)
    heads = json.integer("num_attention_heads")
    moe = model_type == "qwen3_moe"
    return TransformerConfig(
        vocab_size=json.integer("vocab_size"),
        hidden_size=json.integer("hidden_size"),
        num_hidden_layers=json.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=json.integer("num_key_value_heads", heads if model_type == "llama" else None),
        head_dim=_head_dim(json, heads, model_type),
        intermediate_size=json.integer("intermediate_size"),
        num_experts=_expert_count(json) if moe else 0,
        num_experts_per_tok=json.integer("num_experts_per_tok", None if moe else 2),
        moe_intermediate_size=json.integer("moe_intermediate_size", None if moe else 32),
        norm_topk_prob=json.flag("norm_topk_prob", not moe),
        qk_norm=model_type in ("qwen3", "qwen3_moe"),
        attention_bias=model_type == "qwen2",
        tie_word_embeddings=json.flag("tie_word_embeddings", False),
        rope_theta=_rope_theta(values, file),
        rms_norm_eps=json.number("rms_norm_eps", 1e-6),
    )


def _build_error(file: Path, name: str, value: Json) -> ValueError:
    return ValueError(f"{file}: {name} {value!r} is not supported.")


def _model_type(values: Mapping[str, Json], file: Path) -> str:
    named, model_type = values.get("architectures"), values.get("model_type")
    if not named:
        by_type = {kind: kind for kind in ARCHITECTURES.values()}
        return lookup(by_type, model_type, "model_type")  # pyright: ignore[reportArgumentType]
    architecture = named[0] if isinstance(named, list) else named
    expected = lookup(ARCHITECTURES, architecture, "architecture")
    if model_type not in (None, expected):
        raise ValueError(
            f"{file}: model_type must be {expected!r} for architecture {architecture!r}, got {model_type!r}."
        )
    return expected


def _head_dim(json: JsonObject, heads: int, model_type: str) -> int:
    if model_type == "qwen3" and "head_dim" not in json.values:
        return 128
    width = json.integer("hidden_size")
    if json.values.get("head_dim") is None and width % heads:
        raise ValueError(
            f"{json.file}: hidden_size must be a multiple of num_attention_heads ({heads}), got {width}."
        )
    return json.integer("head_dim", width // heads)


def _expert_count(json: JsonObject) -> int:
    """Return the number of experts from its older name, its newer one, or both if equal."""
    spellings = ("num_experts", "num_local_experts")
    counts = {name: json.integer(name) for name in spellings if json.values.get(name) is not None}
    if len(set(counts.values())) != 1:
        raise ValueError(
            f"{json.file} must have one number of experts as {' or '.join(spellings)}, got {counts}."
        )
    return next(iter(counts.values()))


def _rope_theta(values: Mapping[str, Json], file: Path) -> float:
    """Return the base of rotary embedding: `rope_theta`, in newer files in `rope_parameters`."""
    rope: dict[str, Json] = {}
    for name in ("rope_scaling", "rope_parameters"):
        options = values.get(name) or {}
        if not isinstance(options, dict) or not _is_plain_rope(options):
            raise _build_error(file, name, options)
        rope |= options
    return JsonObject({**values, **rope}, file).number("rope_theta", 10000.0)


def _is_plain_rope(options: Mapping[str, Json]) -> bool:
    named = set(options) <= {"rope_theta", "rope_type", "type", "partial_rotary_factor"}
    kind = options.get("rope_type", options.get("type", "default"))
    return named and kind == "default" and options.get("partial_rotary_factor", 1) == 1


def to_config_json(config: TransformerConfig, dtype: str, longest: int) -> dict[str, Json]:
    """Return the values of `config.json` for weights of `dtype` and up to `longest` tokens.

    Includes fields that a dense model does not use, so that the config round-trips.

    Raises:
        ValueError: No Hugging Face architecture has this combination of options.
    """
    architecture = _architecture_of(config)
    values = asdict(config) | {
        "architectures": [architecture],
        "model_type": ARCHITECTURES[architecture],
        "hidden_act": "silu",
        "max_position_embeddings": longest,
        # Older readers need `rope_theta` and `torch_dtype`, newer ones these.
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "torch_dtype": dtype,
        "dtype": dtype,
        "use_cache": True,
    }
    for name in ("num_experts", "qk_norm", "attention_bias"):
        del values[name]
    if architecture != "Qwen2ForCausalLM":
        values |= {"attention_bias": False}
    if config.num_experts:
        values |= {"num_experts": config.num_experts, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return values


def _architecture_of(config: TransformerConfig) -> str:
    architecture = {
        (True, True, False): "Qwen3MoeForCausalLM",
        (False, True, False): "Qwen3ForCausalLM",
        (False, False, True): "Qwen2ForCausalLM",
        (False, False, False): "LlamaForCausalLM",
    }.get((config.num_experts > 0, config.qk_norm, config.attention_bias))
    if architecture is None:
        raise ValueError(
            f"config must be one of the architectures {', '.join(ARCHITECTURES)}, got num_experts "
            f"{config.num_experts}, qk_norm {config.qk_norm}, attention_bias {config.attention_bias}."
        )
    return architecture
