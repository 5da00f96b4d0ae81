"""Controls that several pages offer, under one key each, so that a link carries them along."""

from __future__ import annotations

from typing import Any

from k3core.capacity.presets import PRESETS
from k3core.ui.controls import Choice, Slider, Steps, Values


def _preset(values: Values) -> Any:
    return PRESETS[values["model"]]


MODEL = Choice("model", "kimi-k3", "model", options=tuple(PRESETS))
TP = Steps(
    "tp",
    lambda values: 8 if 8 in _preset(values).valid_tps else max(_preset(values).valid_tps),
    "model",
    options=lambda values: _preset(values).valid_tps,
)
STATE_DTYPE = Choice("state_dtype", "float32", "model", options=("float32", "bfloat16", "float64"))
MLA_DTYPE = Choice(
    "mla_dtype",
    lambda values: _preset(values).mla_dtype,
    "model",
    options=("float8", "bfloat16", "float32"),
)
INPUT_DTYPE = Choice("input_dtype", "bfloat16", "model", options=("bfloat16", "float32", "float64"))
DRAFT_LEN = Slider("draft_len", 7, "step", low=0, high=15)
ACCEPTED = Slider("accepted", 3, "step", low=0, high=lambda values: values["draft_len"] + 1)
SEED = Slider("seed", 0, "run", low=0, high=20)
