"""Fields of a ``config.json`` that do not change the bytes of a cache.

They concern weights, experts, positions, tokens or training. A field that is neither here nor read
by `k3core.capacity.configs` is reported to the reader as unknown.
"""

HARMLESS = frozenset(
    """
    architectures attention_bias attention_dropout attn_output_gate auto_map bos_token_id dtype
    eos_token_id pad_token_id hidden_act hidden_dropout initializer_range intermediate_size
    max_position_embeddings model_max_length model_type num_experts num_experts_per_tok
    num_experts_per_token num_shared_experts n_routed_experts n_shared_experts vocab_size
    rms_norm_eps norm_eps layer_norm_epsilon rope_theta rope_scaling rope_parameters
    partial_rotary_factor rotary_dim rope_interleave tie_word_embeddings torch_dtype
    transformers_version use_cache use_sliding_window sliding_window mlp_only_layers
    decoder_sparse_step norm_topk_prob output_router_logits router_aux_loss_coef
    shared_expert_intermediate_size moe_intermediate_size moe_shared_expert_intermediate_size
    moe_layer_freq moe_renormalize moe_router_activation_func moe_router_enable_expert_bias
    routed_scaling_factor routed_expert_hidden_size first_k_dense_replace topk_group n_group
    num_expert_group use_grouped_topk topk_method scoring_func score_function q_lora_rank
    qk_nope_head_dim qk_head_dim v_head_dim mla_use_nope mla_use_output_gate gate_lower_bound
    use_full_rank_gate activation_situ_beta activation_situ_linear_beta attn_res_block_size
    latent_moe_use_norm quantization_config vision_config image_token_id video_token_id
    vision_start_token_id vision_end_token_id kda_lower_bound kda_safe_gate
    gated_attention_proj_granularity_type use_qk_norm use_bias use_qkv_bias chunk_size expand
    mamba_hidden_act mamba_proj_bias use_conv_bias mlp_bias mlp_hidden_act moe_latent_size
    time_step_limit time_step_max time_step_min time_step_floor rescale_prenorm_residual
    residual_in_fp32 num_logits_to_keep use_mamba_kernels mamba_dt_rank mamba_num_groups
    hc_mult hc_eps hc_sinkhorn_iters swiglu_limit mlp_layer_types ep_size router_dtype
    num_key_value_heads head_dim full_attention_interval mtp_use_dedicated_embeddings
    index_n_heads index_topk index_kpool_compress index_kpool_always_select_tail indexer_types
    indexer_rope_interleave index_share_for_mtp_iteration moe_router_dtype mhc num_mtp_layers
    name_or_path _name_or_path language_model_only bias num_token_types tokenizer_class
    """.split()  # noqa: SIM905
)
