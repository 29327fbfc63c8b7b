"""Supervised training of initial policies."""

import jax
import numpy as np

from simlab.models.config import TransformerConfig
from simlab.tasks import TASKS
from simlab.training.warm_start import WarmStart, warm_start

SMALL = TransformerConfig(hidden_size=32, num_hidden_layers=1, intermediate_size=32)


def _losses(**how):
    settings = WarmStart(steps=20, batch=8, **how)
    return np.asarray(warm_start(TASKS["add"](), SMALL, settings, jax.random.key(0))[1])


def test_warm_start_warms_up_over_a_twentieth_by_default():
    usual = _losses()
    assert usual.tolist() == _losses(lr_warmup_steps=1).tolist()
    # A long warm-up takes small steps first, so the loss falls later.
    slow = _losses(lr_warmup_steps=20)
    assert slow[0] == usual[0]
    assert slow[1:6].mean() > usual[1:6].mean()
