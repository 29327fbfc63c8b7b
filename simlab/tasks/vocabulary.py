"""The vocabulary of all tasks: 32 tokens, one character each."""

import numpy as np

PAD_TOKEN_ID = 0
EOS_TOKEN_ID = 1
SYMBOLS = "0123456789abcdefghijklmno+=>:"
CHARACTERS = "_$" + SYMBOLS + "?"
"""The character of every token: `_` is padding, `$` ends a response, `?` is unused."""

VOCABULARY_SIZE = len(CHARACTERS)
_TOKENS = {character: token for token, character in enumerate(CHARACTERS)}

DIGIT = _TOKENS["0"]
"""Token of the digit 0; the other nine follow."""
LETTER = _TOKENS["a"]
"""Token of the letter a; b to o follow."""


def encode(text: str) -> np.ndarray:
    """Return the tokens of `text`, int32 `[len(text)]`.

    Raises:
        ValueError: A character has no token.
    """
    if unknown := sorted(set(text) - set(CHARACTERS)):
        raise ValueError(f"characters must be in {CHARACTERS!r}, got {unknown[0]!r}.")
    return np.asarray([_TOKENS[character] for character in text], np.int32)


def decode(tokens: np.ndarray) -> str:
    """Return the text of one row of tokens with its padding; `encode` reverses it."""
    return "".join(CHARACTERS[int(token)] for token in np.asarray(tokens))
