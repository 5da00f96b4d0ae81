"""Fields of a ``config.json``: how one is read, and which do not change the bytes of a cache.

Harmless fields concern weights, experts, positions, tokens or training. A field that is neither
harmless nor read by `k3core.capacity.configs` is reported to the reader as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k3core.capacity.config_json import ConfigError
from k3core.capacity.model import MAX_LAYERS, MAX_SIZE
from k3core.errors import require, require_count, shown

HARMLESS = frozenset(
    """
    architectures attention_bias attention_dropout attn_output_gate auto_map bos_token_id dtype
    eos_token_id pad_token_id hidden_act hidden_dropout initializer_range intermediate_size
    max_position_embeddings model_max_length model_type num_experts num_experts_per_tok
    num_experts_per_token num_shared_experts n_routed_experts n_shared_experts vocab_size
    rms_norm_eps norm_eps layer_norm_epsilon rope_theta rope_scaling rope_parameters
    partial_rotary_factor rotary_dim rope_interleave tie_word_embeddings torch_dtype
    transformers_version use_cache mlp_only_layers
    decoder_sparse_step norm_topk_prob output_router_logits router_aux_loss_coef
    shared_expert_intermediate_size moe_intermediate_size moe_shared_expert_intermediate_size
    moe_layer_freq moe_renormalize moe_router_activation_func moe_router_enable_expert_bias
    routed_scaling_factor routed_expert_hidden_size first_k_dense_replace topk_group n_group
    num_expert_group use_grouped_topk topk_method scoring_func score_function q_lora_rank
    qk_nope_head_dim qk_head_dim v_head_dim mla_use_nope mla_use_output_gate gate_lower_bound
    use_full_rank_gate activation_situ_beta activation_situ_linear_beta attn_res_block_size
    latent_moe_use_norm vision_config image_token_id video_token_id
    vision_start_token_id vision_end_token_id kda_lower_bound kda_safe_gate
    gated_attention_proj_granularity_type use_qk_norm use_bias use_qkv_bias chunk_size expand
    mamba_hidden_act mamba_proj_bias use_conv_bias mlp_bias mlp_hidden_act moe_latent_size
    time_step_limit time_step_max time_step_min time_step_floor rescale_prenorm_residual
    residual_in_fp32 num_logits_to_keep use_mamba_kernels mamba_dt_rank
    hc_mult hc_eps hc_sinkhorn_iters swiglu_limit mlp_layer_types ep_size router_dtype
    num_key_value_heads head_dim mtp_use_dedicated_embeddings
    index_n_heads index_topk index_kpool_compress index_kpool_always_select_tail indexer_types
    indexer_rope_interleave index_share_for_mtp_iteration moe_router_dtype mhc
    name_or_path _name_or_path language_model_only bias num_token_types tokenizer_class
    """.split()  # noqa: SIM905
)
HARMLESS_LINEAR = frozenset(("gate_lower_bound", "use_full_rank_gate"))


class Fields:
    """A config whose read fields are remembered.

    Args:
        values: the fields; null counts as absent.
        where: what stands before a field's name in messages.
        torn: fields that the file gives twice, outside and inside of its text model, with
            different values: reading one is refused.
    """

    def __init__(
        self, values: Mapping[str, Any], where: str = "", torn: Mapping[str, Any] | None = None
    ) -> None:
        self.values = values
        self.where = where
        self.torn = torn or {}
        self.used: dict[str, None] = {}
        for name, value in values.items():
            require(
                not (isinstance(value, str) and value.lower() in ("true", "false")),
                f"{where}{shown(name)[1:-1]}={shown(value)} is text, not true or false",
                ConfigError,
            )

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    @property
    def unread(self) -> list[str]:
        """Fields with a value that nobody asked for."""
        return [name for name in self.values if name in self and name not in self.used]

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        self.used[name] = None
        value = self.values[name]
        require(
            name not in self.torn,
            f"{name}={shown(self.torn.get(name))} at the top contradicts {shown(value)} in the "
            "text model",
            ConfigError,
        )
        return value

    def size(self, name: str, default: int | None = None, low: int = 1) -> int:
        """A whole number of at least ``low``."""
        value = self.get(name, default)
        require(value is not None, f"the config lacks {self.where}{name}", ConfigError)
        most = MAX_LAYERS if name == "num_hidden_layers" else MAX_SIZE
        return require_count(f"{self.where}{name}", value, low, most, ConfigError)

    def one_of(self, *names: str, default: int | None = None, low: int = 1) -> int:
        """One size under several names, which must agree where the file has more than one."""
        found = {name: self.size(name, low=low) for name in names if name in self}
        if not found and default is not None:
            return default
        require(bool(found), f"the config lacks {self.where}{' / '.join(names)}", ConfigError)
        require(
            len(set(found.values())) == 1,
            " and ".join(f"{self.where}{name}={value}" for name, value in found.items())
            + " contradict each other",
            ConfigError,
        )
        return next(iter(found.values()))

    def typed(self, name: str, kind: type, words: str, default: Any) -> Any:
        """A field of one type, called ``words`` in the message; ``default`` where it is absent."""
        value = self.get(name, default)
        require(
            isinstance(value, kind),
            f"{self.where}{name}={shown(value)} must be {words}",
            ConfigError,
        )
        return value

    def flag(self, name: str) -> bool:
        return bool(self.typed(name, bool, "true or false", False))

    def word(self, name: str) -> str:
        return str(self.typed(name, str, "text", ""))

    def section(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.typed(name, Mapping, "a JSON object", {})
        return found

    def list(self, name: str) -> list[Any]:
        value = self.get(name)
        require(
            isinstance(value, list),
            f"{self.where}{name}={shown(value)} must be a list",
            ConfigError,
        )
        return [*value]
