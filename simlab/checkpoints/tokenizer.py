"""The lab's tokenizer as Hugging Face files: one token per character of the tasks' vocabulary."""

from typing import Any

from simlab.tasks.vocabulary import CHARACTERS, END, PAD

UNKNOWN = CHARACTERS[-1]
"""The unused token: what characters outside the vocabulary become. The lab's own `encode` refuses them."""


def tokenizer_files(longest: int) -> dict[str, dict[str, Any]]:
    """Return the contents of the files by name, for sequences of up to `longest` tokens."""
    pad, end = CHARACTERS[PAD], CHARACTERS[END]
    special = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": CHARACTERS[token], **special} for token in (PAD, END)],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        # Without a decoder, tokens would be joined by spaces.
        "decoder": {"type": "Fuse"},
        # Byte-pair encoding without a single merge: characters.
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNKNOWN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {character: token for token, character in enumerate(CHARACTERS)},
            "merges": [],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad,
        "eos_token": end,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": longest,
    }
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": settings}
