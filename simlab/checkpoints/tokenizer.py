"""The tokenizer of the tasks as Hugging Face files: one token per character."""

from simlab.core.json_value import Json
from simlab.tasks.vocabulary import CHARACTERS, EOS_TOKEN_ID, PAD_TOKEN_ID

UNKNOWN = CHARACTERS[-1]
"""The token for characters outside the vocabulary, which `simlab.tasks.vocabulary.encode` rejects."""


def tokenizer_files(longest: int) -> dict[str, dict[str, Json]]:
    """Return the contents of the files by name, for sequences of up to `longest` tokens."""
    pad, end = CHARACTERS[PAD_TOKEN_ID], CHARACTERS[EOS_TOKEN_ID]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        **dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor")),
        "added_tokens": [
            {"id": token, "content": CHARACTERS[token], **special} for token in (PAD_TOKEN_ID, EOS_TOKEN_ID)
        ],
        # Without a decoder, spaces would separate the tokens.
        "decoder": {"type": "Fuse"},
        # Byte-pair encoding without merges gives characters.
        "model": {
            "type": "BPE",
            **dict.fromkeys(("dropout", "continuing_subword_prefix", "end_of_word_suffix")),
            "unk_token": UNKNOWN,
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
