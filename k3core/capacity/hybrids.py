"""Hybrid models that the planner compares with Kimi K3: Gated DeltaNet and Mamba-2.

Their growing cache are grouped-query keys and values, which ranks share until each holds one KV
head.
"""

from __future__ import annotations

from k3core.capacity.model import ModelPreset
from k3core.errors import CapacityError, require_type

_AIC = "as carried by ai-dynamo/aiconfigurator model_configs"


def _gated_deltanet(
    code: str,
    title: str,
    num_layers: int,
    value_heads: int,
    hidden_size: int,
    query_heads: int,
    kv_heads: int,
    source: str,
    total_params: float,
    active_params: float,
) -> ModelPreset:
    """A Qwen hybrid: three GDN layers, then one with full attention (heads of 256)."""
    return ModelPreset(
        code=code,
        title=title,
        num_kda_layers=num_layers - num_layers // 4,
        mla_layer_ids=tuple(range(4, num_layers + 1, 4)),
        num_heads=value_heads,
        num_key_heads=16,
        dk=128,
        dv=128,
        conv_width=4,
        mla_latent_dim=2 * kv_heads * 256,
        mla_dtype="bfloat16",
        hidden_size=hidden_size,
        num_mla_heads=query_heads,
        gate_low_rank_dim=1,
        source=source,
        total_params=total_params,
        active_params=active_params,
        max_context_len=262_144,
        note="the decay is one number per head and token, not one per channel as in KDA",
        kind="gdn",
        num_kv_heads=kv_heads,
    )


_QWEN = tuple(
    _gated_deltanet(*row)
    for row in (
        (
            "qwen3.5-397b", "Qwen3.5-397B-A17B", 60, 64, 4096, 32, 2,
            f"Qwen/Qwen3.5-397B-A17B config.json, {_AIC}", 397e9, 17e9,
        ),
        (
            "qwen3.5-122b", "Qwen3.5-122B-A10B", 48, 64, 3072, 32, 2,
            f"Qwen/Qwen3.5-122B-A10B config.json, {_AIC}", 122e9, 10e9,
        ),
        (
            "qwen3.5-35b", "Qwen3.5-35B-A3B", 40, 32, 2048, 16, 2,
            f"Qwen/Qwen3.5-35B-A3B config.json, {_AIC}", 35e9, 3e9,
        ),
        (
            "qwen3.5-27b", "Qwen3.5-27B", 64, 48, 5120, 24, 4,
            f"Qwen/Qwen3.5-27B config.json, {_AIC}", 27e9, 27e9,
        ),
        (
            "qwen3.5-4b", "Qwen3.5-4B", 32, 32, 2560, 16, 4,
            "Qwen/Qwen3.5-4B: a state page of 2,146,304 B and rows of 4,096 B in vLLM #40696; "
            "24 GDN layers of 32 heads in a llama.cpp log", 4e9, 4e9,
        ),
        (
            "qwen3-next", "Qwen3-Next-80B-A3B", 48, 32, 2048, 16, 2,
            f"Qwen/Qwen3-Next-80B-A3B config.json, {_AIC}; SGLang #28730", 80e9, 3e9,
        ),
    )
)  # fmt: skip


def layer_ids(pattern: str, marks: str) -> tuple[int, ...]:
    """1-based places of the characters ``marks`` in a Nemotron-H layer pattern."""
    require_type("pattern", pattern, str, CapacityError)
    require_type("marks", marks, str, CapacityError)
    return tuple(place for place, mark in enumerate(pattern, 1) if mark in marks)


def _mamba2(
    code: str,
    title: str,
    pattern: str,
    num_heads: int,
    state_size: int,
    hidden_size: int,
    query_heads: int,
    kv_heads: int,
    source: str,
    total_params: float,
    active_params: float,
) -> ModelPreset:
    """A Nemotron hybrid: Mamba-2 (M), attention (*), MoE (E) and MLP (-) layers; 8 groups."""
    return ModelPreset(
        code=code,
        title=title,
        num_kda_layers=pattern.count("M"),
        mla_layer_ids=layer_ids(pattern, "*"),
        other_layer_ids=layer_ids(pattern, "E-"),
        num_heads=num_heads,
        num_key_heads=8,
        dk=state_size,
        dv=64,
        conv_width=4,
        mla_latent_dim=2 * kv_heads * 128,
        mla_dtype="bfloat16",
        hidden_size=hidden_size,
        num_mla_heads=query_heads,
        gate_low_rank_dim=1,
        source=source,
        total_params=total_params,
        active_params=active_params,
        note="B and C take the place of k and q; groups below the parallel degree are copied",
        kind="mamba2",
        num_kv_heads=kv_heads,
    )


_SUPER = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
_NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
_H_8B = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
_H_56B = (
    "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-"
    "M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
)

_NEMOTRON = tuple(
    _mamba2(*row)
    for row in (
        (
            "nemotron-3-super", "Nemotron-3-Super-120B-A12B", _SUPER, 128, 128, 4096, 32, 2,
            f"nvidia/NVIDIA-Nemotron-3-Super-120B-A12B config.json, {_AIC}", 120e9, 12e9,
        ),
        (
            "nemotron-3-nano", "Nemotron-3-Nano-30B-A3B", _NANO, 64, 128, 2688, 32, 2,
            f"nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B config.json, {_AIC}", 30e9, 3e9,
        ),
        (
            "nemotron-h-8b", "Nemotron-H-8B", _H_8B, 128, 128, 4096, 32, 8,
            "nvidia/Nemotron-H-8B-Base-8K config.json; NeMo NemotronHConfig8B", 8e9, 8e9,
        ),
        (
            "nemotron-h-56b", "Nemotron-H-56B", _H_56B, 256, 256, 8192, 64, 8,
            f"nvidia/Nemotron-H-56B-Base-8K config.json, {_AIC}; NeMo NemotronHConfig56B",
            56e9, 56e9,
        ),
    )
)  # fmt: skip

HYBRIDS: tuple[ModelPreset, ...] = (*_QWEN, *_NEMOTRON)
QWEN3_5_27B = next(preset for preset in _QWEN if preset.code == "qwen3.5-27b")
