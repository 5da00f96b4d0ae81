"""Numbers of public ``config.json`` files, as test data: the fields that a cache depends on.

How each was read:

- a copy of the file that a public repository carries (ai-dynamo/aiconfigurator model_configs,
  lightseekorg/tokenspeed): Kimi K3, Qwen3-Next, Qwen3.5-397B, Nemotron-3-Super, Nemotron-H-56B, and
  Kimi-Linear, whose fields vLLM #28228 confirms;
- second hand, from tests and threads of several repositories that repeat the fields and agree; the
  file itself was not read: GLM-5.3-Flash (its 64 heads also follow from logged page sizes), and
  Ling-3.0-flash and -tiny.
"""

from typing import Any


def _one_based(num_layers: int, full: list[int]) -> dict[str, list[int]]:
    return {
        "full_attn_layers": full,
        "kda_layers": [i for i in range(1, num_layers + 1) if i not in full],
    }


# moonshotai/Kimi-K3 config.json: nested text_config, lists counted from 1.
KIMI_K3: dict[str, Any] = {
    "architectures": ["KimiK3ForConditionalGeneration"],
    "model_type": "kimi_k3",
    "text_config": {
        "model_type": "kimi_linear",
        "hidden_size": 7168,
        "intermediate_size": 33792,
        "num_hidden_layers": 93,
        "num_attention_heads": 96,
        "num_key_value_heads": 96,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_shared_experts": 2,
        "moe_intermediate_size": 3072,
        "routed_expert_hidden_size": 3584,
        "first_k_dense_replace": 1,
        "attn_res_block_size": 12,
        "num_nextn_predict_layers": 0,
        "max_position_embeddings": 1_048_576,
        "vocab_size": 163_840,
        "rms_norm_eps": 1e-05,
        "linear_attn_config": {
            "num_heads": 96,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "use_full_rank_gate": True,
            **_one_based(93, [*range(4, 93, 4), 93]),
        },
    },
    "vision_config": {"patch_size": 14, "vt_hidden_size": 1152},
}

# moonshotai/Kimi-Linear-48B-A3B-Instruct config.json; head_dim 72 belongs to no KDA head.
KIMI_LINEAR: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "hidden_size": 2304,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 72,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mla_use_nope": True,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 1024,
    "first_k_dense_replace": 1,
    "vocab_size": 163_840,
    "linear_attn_config": {
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        **_one_based(27, [4, 8, 12, 16, 20, 24, 27]),
    },
}

# zai-org/GLM-5.3-Flash config.json: lists counted from 0, indexer, one MTP layer.
GLM_5_3_FLASH: dict[str, Any] = {
    "model_type": "glm5_next",
    "text_config": {
        "model_type": "glm5_next_text",
        "hidden_size": 4096,
        "num_hidden_layers": 45,
        "num_attention_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "v_head_dim": 256,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "index_topk": 2048,
        "index_kpool": 4,
        "n_routed_experts": 288,
        "num_nextn_predict_layers": 1,
        "linear_attn_config": {
            "num_heads": 64,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "full_attn_layers": list(range(3, 44, 4)),
            "kda_layers": [i for i in range(45) if i not in range(3, 44, 4)],
        },
    },
}

# inclusionAI/Ling-3.0-flash config.json: MLA at the end of each group of 6.
LING_3_FLASH: dict[str, Any] = {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "model_type": "bailing_hybrid",
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "num_hidden_layers": 42,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_head_dim": 192,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "layer_group_size": 6,
    "short_conv_kernel_size": 4,
    "no_kda_lora": True,
    "kda_safe_gate": True,
    "kda_lower_bound": -5.0,
    "num_experts": 512,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 262_144,
    "vocab_size": 157_184,
}

# inclusionAI/Ling-3.0-tiny config.json.
LING_3_TINY: dict[str, Any] = LING_3_FLASH | {
    "hidden_size": 1536,
    "intermediate_size": 4608,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "layer_group_size": 4,
    "q_lora_rank": 256,
    "num_experts": 128,
    "max_position_embeddings": 131_072,
}

# Qwen/Qwen3-Next-80B-A3B-Thinking config.json (ai-dynamo/aiconfigurator model_configs).
QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262_144,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
}

# Qwen/Qwen3.5-397B-A17B config.json (ai-dynamo/aiconfigurator model_configs).
QWEN3_5_397B: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "image_token_id": 248_056,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "head_dim": 256,
        "hidden_size": 4096,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 15,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 64,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262_144,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 32,
        "num_experts": 512,
        "num_hidden_layers": 60,
        "num_key_value_heads": 2,
        "vocab_size": 248_320,
    },
}

# nvidia/NVIDIA-Nemotron-3-Super-120B-A12B config.json.
NEMOTRON_3_SUPER: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hybrid_override_pattern": (
        "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
    ),
    "num_hidden_layers": 88,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "moe_latent_size": 1024,
    "num_nextn_predict_layers": 1,
}

# nvidia/Nemotron-H-56B-Base-8K config.json; the attention width has another name there.
NEMOTRON_H_56B: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hybrid_override_pattern": (
        "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-"
        "M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    ),
    "num_hidden_layers": 118,
    "hidden_size": 8192,
    "intermediate_size": 32768,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "attention_head_dim": 128,
    "mamba_num_heads": 256,
    "mamba_head_dim": 64,
    "ssm_state_size": 256,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "vocab_size": 131_072,
    "max_position_embeddings": 8192,
}

PUBLIC: dict[str, dict[str, Any]] = {
    "kimi-k3": KIMI_K3,
    "kimi-linear-48b": KIMI_LINEAR,
    "glm-5.3-flash": GLM_5_3_FLASH,
    "ling-3.0-flash": LING_3_FLASH,
    "ling-3.0-tiny": LING_3_TINY,
    "qwen3-next": QWEN3_NEXT,
    "qwen3.5-397b": QWEN3_5_397B,
    "nemotron-3-super": NEMOTRON_3_SUPER,
    "nemotron-h-56b": NEMOTRON_H_56B,
}
