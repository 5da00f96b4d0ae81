"""Published sizes of hybrid models, as data: what a serving layer needs to count bytes.

Sizes are those of the whole model; `k3core.capacity.memory` divides them by the parallel degree.
``PRESETS`` are the models with KDA layers that every page offers; ``MODELS`` adds the ones that
only the planner compares (`k3core.capacity.hybrids`).
"""

from __future__ import annotations

from k3core.capacity.hybrids import HYBRIDS
from k3core.capacity.model import ModelPreset
from k3core.errors import CapacityError

__all__ = ["MODELS", "PRESETS", "ModelPreset", "get_preset"]

KIMI_K3 = ModelPreset(
    code="kimi-k3",
    title="Kimi K3",
    num_kda_layers=69,
    mla_layer_ids=(*range(4, 93, 4), 93),
    num_heads=96,
    dk=128,
    dv=128,
    conv_width=4,
    mla_latent_dim=512 + 64,
    mla_dtype="float8",
    hidden_size=7168,
    num_mla_heads=96,
    gate_low_rank_dim=128,
    source="moonshotai/Kimi-K3 config.json (HF snapshot a527b42c, as carried by "
    "ai-dynamo/aiconfigurator and lightseekorg/tokenspeed); arXiv:2607.24653",
    total_params=2.78e12,
    active_params=104.2e9,
    max_context_len=1_048_576,
    note="the rope slot of 64 stays in the cache although the model uses no rope",
)

KIMI_LINEAR_48B = ModelPreset(
    code="kimi-linear-48b",
    title="Kimi-Linear-48B-A3B",
    num_kda_layers=20,
    mla_layer_ids=(4, 8, 12, 16, 20, 24, 27),
    num_heads=32,
    dk=128,
    dv=128,
    conv_width=4,
    mla_latent_dim=512 + 64,
    mla_dtype="bfloat16",
    hidden_size=2304,
    num_mla_heads=32,
    gate_low_rank_dim=128,
    source="moonshotai/Kimi-Linear-48B-A3B config.json; vLLM #28228",
    total_params=48e9,
    active_params=3e9,
    max_context_len=1_048_576,
)

GLM_5_3_FLASH = ModelPreset(
    code="glm-5.3-flash",
    title="GLM-5.3-Flash",
    num_kda_layers=34,
    mla_layer_ids=tuple(range(4, 45, 4)),
    num_heads=64,
    dk=128,
    dv=128,
    conv_width=4,
    mla_latent_dim=512,
    mla_dtype="bfloat16",
    hidden_size=4096,
    num_mla_heads=64,
    gate_low_rank_dim=128,
    source="vLLM #54458, unslothai/llama.cpp #116, ATOM #2051; 64 heads of 128 follow from the "
    "logged page size and from the 67,840 B of one KDA layer at TP64 (vLLM on Neuron)",
    total_params=320e9,
    active_params=18e9,
    note="the sparse-attention indexer keeps keys of its own, which are not counted here; the "
    "width of the gate's low-rank input is not published and taken as one head",
)

TOY = ModelPreset(
    code="toy",
    title="Toy",
    num_kda_layers=3,
    mla_layer_ids=(4,),
    num_heads=16,
    dk=32,
    dv=32,
    conv_width=4,
    mla_latent_dim=64,
    mla_dtype="bfloat16",
    hidden_size=512,
    num_mla_heads=16,
    gate_low_rank_dim=32,
    source="H=16, dk=dv=32 of the text this lab starts from; layers and latent width chosen here",
)

PRESETS: dict[str, ModelPreset] = {
    preset.code: preset for preset in (KIMI_K3, KIMI_LINEAR_48B, GLM_5_3_FLASH, TOY)
}

MODELS: dict[str, ModelPreset] = PRESETS | HYBRIDS


def get_preset(code: str) -> ModelPreset:
    """The model with this code, of ``MODELS``.

    Raises:
        CapacityError: the code is unknown; the message lists the known ones.
    """
    if code not in MODELS:
        raise CapacityError(f"model={code!r} is unknown; allowed: {', '.join(MODELS)}")
    return MODELS[code]
