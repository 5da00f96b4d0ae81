"""All described models by code: what a serving layer needs to count bytes.

Sizes are those of the whole model; `k3core.capacity.memory` divides them by the parallel degree.
``PRESETS`` are the models with KDA layers that every page offers, ``MODELS`` adds those that only
the planner offers, ``REPORTED`` are sizes that a public report implies: they open with its row of
the published numbers and are in no list.
"""

from __future__ import annotations

from dataclasses import replace

from k3core.capacity.hybrids import HYBRIDS, QWEN3_5_27B
from k3core.capacity.kda_models import (
    GLM_5_3_FLASH,
    KIMI_K3,
    KIMI_LINEAR_48B,
    LING_3_FLASH,
    LING_3_TINY,
    TOY,
)
from k3core.capacity.lab_stack import LAB_STACK
from k3core.capacity.model import ModelPreset
from k3core.errors import CapacityError, shown

__all__ = ["MODELS", "PRESETS", "REPORTED", "ModelPreset", "get_preset"]


def _by_code(*presets: ModelPreset) -> dict[str, ModelPreset]:
    return {preset.code: preset for preset in presets}


PRESETS = _by_code(KIMI_K3, KIMI_LINEAR_48B, GLM_5_3_FLASH, TOY)
MODELS = PRESETS | _by_code(LING_3_FLASH, LING_3_TINY, *HYBRIDS, LAB_STACK)
REPORTED = _by_code(
    replace(
        QWEN3_5_27B,
        code="qwen3.8-flash-next",
        title="Qwen3.8-Flash-Next (inferred)",
        num_kv_heads=2,
        mla_latent_dim=2 * 2 * 256,
        source="inferred: 48 value heads and rows of 2,048 B reproduce vLLM #54458; no config read",
        total_params=None,
        active_params=None,
    ),
    replace(
        GLM_5_3_FLASH,
        code="glm-rows-of-576",
        title="GLM-5.3-Flash, rows of 576",
        mla_latent_dim=576,
        source="inferred: a latent row of 576 numbers reproduces vLLM #54458",
    ),
    replace(
        KIMI_K3,
        code="sglang-64-heads",
        title="70 layers of 64 heads",
        num_kda_layers=70,
        mla_layer_ids=(71,),
        num_heads=64,
        num_mla_heads=64,
        source="the shape that SGLang #27658 states; its attention layers do not matter there",
        total_params=None,
        active_params=None,
        note="",
    ),
)


def get_preset(code: str) -> ModelPreset:
    """The model with this code, of ``MODELS`` or ``REPORTED``.

    Raises:
        CapacityError: the code is unknown; the message lists the known ones.
    """
    found = (MODELS | REPORTED).get(code) if isinstance(code, str) else None
    if found is None:
        raise CapacityError(f"model={shown(code)} is unknown; allowed: {', '.join(MODELS)}")
    return found
