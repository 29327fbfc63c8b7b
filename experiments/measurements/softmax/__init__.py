"""The parts of the softmax experiment: Gaussian logits, the sweep, real logits, theory, statistics."""
