"""simlab: a numerical-precision simulation lab for reinforcement learning of language models."""
