"""Models with KDA layers: published sizes as data.

The growing cache of all of them is an MLA latent, which every rank keeps whole.
"""

from __future__ import annotations

from typing import Any

from k3core.capacity.model import ModelPreset


def _kda(
    code: str,
    title: str,
    *,
    num_kda_layers: int,
    mla_layer_ids: tuple[int, ...],
    num_heads: int,
    hidden_size: int,
    source: str,
    head_dim: int = 128,
    **more: Any,
) -> ModelPreset:
    """A KDA model: square heads, a convolution of width 4, a low-rank gate as wide as a head."""
    sizes: dict[str, Any] = {
        "mla_latent_dim": 512 + 64,
        "mla_dtype": "bfloat16",
        "gate_low_rank_dim": head_dim,
    }
    return ModelPreset(
        code=code,
        title=title,
        num_kda_layers=num_kda_layers,
        mla_layer_ids=mla_layer_ids,
        num_heads=num_heads,
        dk=head_dim,
        dv=head_dim,
        conv_width=4,
        hidden_size=hidden_size,
        num_mla_heads=num_heads,
        source=source,
        **(sizes | more),
    )


KIMI_K3 = _kda(
    "kimi-k3",
    "Kimi K3",
    num_kda_layers=69,
    mla_layer_ids=(*range(4, 93, 4), 93),
    num_heads=96,
    hidden_size=7168,
    mla_dtype="float8",
    source="moonshotai/Kimi-K3 config.json (HF snapshot a527b42c, as carried by "
    "ai-dynamo/aiconfigurator and lightseekorg/tokenspeed); arXiv:2607.24653",
    total_params=2.78e12,
    active_params=104.2e9,
    max_context_len=1_048_576,
    note="the rope slot of 64 stays in the cache although the model uses no rope",
)

KIMI_LINEAR_48B = _kda(
    "kimi-linear-48b",
    "Kimi-Linear-48B-A3B",
    num_kda_layers=20,
    mla_layer_ids=(4, 8, 12, 16, 20, 24, 27),
    num_heads=32,
    hidden_size=2304,
    source="moonshotai/Kimi-Linear-48B-A3B config.json; vLLM #28228",
    total_params=48e9,
    active_params=3e9,
    max_context_len=1_048_576,
)

GLM_5_3_FLASH = _kda(
    "glm-5.3-flash",
    "GLM-5.3-Flash",
    num_kda_layers=34,
    mla_layer_ids=tuple(range(4, 45, 4)),
    num_heads=64,
    hidden_size=4096,
    mla_latent_dim=512,
    source="vLLM #54458, unslothai/llama.cpp #116, ATOM #2051; 64 heads of 128 follow from the "
    "logged page size and from the 67,840 B of one KDA layer at TP64 (vLLM on Neuron)",
    total_params=320e9,
    active_params=18e9,
    note="keys of the sparse-attention indexer lie beside the cache and are counted apart; the "
    "width of the gate's low-rank input is not published and taken as one head",
    indexer_dim=128,
    indexer_pool=4,
)

LING_3_FLASH = _kda(
    "ling-3.0-flash",
    "Ling-3.0-flash",
    num_kda_layers=35,
    mla_layer_ids=tuple(range(6, 43, 6)),
    num_heads=32,
    hidden_size=2560,
    gate_low_rank_dim=32 * 128,
    source="inclusionAI/Ling-3.0-flash config.json (layer_group_size 6 of 42 layers); "
    "AtomicBot-ai/atomic-llama-cpp-turboquant #63",
    total_params=124e9,
    active_params=5.1e9,
    max_context_len=262_144,
    note="the decay gate is of full rank: its input is as wide as the keys",
)

LING_3_TINY = _kda(
    "ling-3.0-tiny",
    "Ling-3.0-tiny",
    num_kda_layers=18,
    mla_layer_ids=tuple(range(4, 25, 4)),
    num_heads=16,
    hidden_size=1536,
    gate_low_rank_dim=16 * 128,
    source="inclusionAI/Ling-3.0-tiny config.json (layer_group_size 4 of 24 layers); "
    "raullenchai/Rapid-MLX #1817",
    total_params=7.9e9,
    active_params=1.3e9,
    max_context_len=131_072,
    note="the decay gate is of full rank: its input is as wide as the keys",
)

TOY = _kda(
    "toy",
    "Toy",
    num_kda_layers=3,
    mla_layer_ids=(4,),
    num_heads=16,
    head_dim=32,
    hidden_size=512,
    mla_latent_dim=64,
    source="H=16, dk=dv=32 of the text this lab starts from; layers and latent width chosen here",
)
