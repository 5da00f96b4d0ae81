"""Models from a Hugging Face ``config.json``: recognised by its fields, never guessed.

Four families are known: KDA with layer lists (Kimi K3, Kimi-Linear, GLM-5.3-Flash), KDA in groups
(Ling 3.0), Gated DeltaNet (Qwen3-Next, Qwen3.5) and Mamba-2 (Nemotron-H, Nemotron-3). Layer lists
must name each layer exactly once, counted from 0 or from 1. A field that neither matters to a
cache nor is known to be harmless is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from k3core.capacity.config_fields import HARMLESS, HARMLESS_LINEAR, Fields
from k3core.capacity.config_json import MAX_CONFIG_CHARS, ConfigError, load_json
from k3core.capacity.hybrids import layer_ids
from k3core.capacity.model import MAX_LAYERS, ModelPreset
from k3core.errors import require, require_count, require_type, shown

__all__ = ["MAX_CONFIG_CHARS", "ConfigError", "ParsedConfig", "check_layers", "parse_config"]

_NESTED = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True)
class ParsedConfig:
    """A model read from a ``config.json``.

    Attributes:
        preset: the sizes, code ``custom``.
        family: ``kda-lists``, ``kda-groups``, ``gdn`` or ``mamba2``.
        index_base: 0 or 1, as the layer lists count; None where the file has no list.
        used: fields that made the sizes.
        unknown: fields that are neither used nor known to be harmless; nothing was assumed of
            them.
        notes: codes of what a reader should know: ``drafter-layers``, ``indexer-keys``,
            ``state-dtype``, ``sliding-window``, ``kv-cache-scheme``.
        drafter_layers: layers of a multi-token-prediction head that the file names.
        state_dtype: format of the recurrent state that the file names, or an empty string.
    """

    preset: ModelPreset
    family: str
    index_base: int | None
    used: tuple[str, ...]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]
    drafter_layers: int = 0
    state_dtype: str = ""


def parse_config(text: str | Mapping[str, Any]) -> ParsedConfig:
    """Recognise a model.

    Args:
        text: the file's text, or its parsed object.

    Raises:
        ConfigError: no JSON object, no known family, a missing size, a field of another type,
            fields that contradict each other, or layer lists that name a layer twice, none at
            all, or one that does not exist.
    """
    config = load_json(text, "the config") if isinstance(text, str) else text
    require(isinstance(config, Mapping), "the config is no JSON object", ConfigError)
    fields = _text_model(config)
    if "linear_attn_config" in fields:
        return _kda_lists(fields)
    if "layer_group_size" in fields:
        return _kda_groups(fields)
    if "linear_num_value_heads" in fields:
        return _gdn(fields)
    if "hybrid_override_pattern" in fields or "mamba_num_heads" in fields:
        return _mamba2(fields)
    raise ConfigError(
        f"model_type={shown(config.get('model_type'))} is no known hybrid: expected "
        "linear_attn_config (KDA), layer_group_size with KDA fields (Ling 3.0), "
        "linear_num_value_heads (Gated DeltaNet) or mamba_num_heads (Mamba-2); a model without "
        "linear layers has no state to plan"
    )


def _text_model(config: Mapping[str, Any]) -> Fields:
    """The fields of the text model, with those around it where it has none of its own."""
    nested = {name: config[name] for name in _NESTED if config.get(name) is not None}
    require(len(nested) <= 1, f"{' and '.join(nested)} describe two text models", ConfigError)
    inner: dict[str, Any] = {}
    for name, value in nested.items():
        require(
            isinstance(value, Mapping),
            f"{name}={shown(value)} must be a JSON object",
            ConfigError,
        )
        inner = {k: v for k, v in value.items() if v is not None}
    top = {k: v for k, v in config.items() if k not in _NESTED}
    torn = {k: top[k] for k, v in inner.items() if top.get(k) is not None and top[k] != v}
    return Fields({**top, **inner}, torn=torn)


def check_layers(
    lists: Mapping[str, list[Any]], num_layers: int
) -> tuple[int, dict[str, tuple[int, ...]]]:
    """The index base of layer lists, and the lists counted from 1.

    The lists together must name every layer once. Layer 0 named means base 0, layer
    ``num_layers`` named means base 1; both or neither is a contradiction.

    Raises:
        ConfigError: a layer is named twice, missing, or does not exist.
    """
    require_type("lists", lists, Mapping, ConfigError)  # type: ignore[type-abstract]
    for name, ids in lists.items():
        require_type(name, ids, list, ConfigError)
    require_count("num_layers", num_layers, 1, MAX_LAYERS, ConfigError)
    named = [index for ids in lists.values() for index in ids]
    names = " and ".join(lists)
    require(
        all(isinstance(i, int) and not isinstance(i, bool) for i in named),
        f"{names} must hold whole numbers",
        ConfigError,
    )
    twice = sorted(i for i, times in Counter(named).items() if times > 1)
    require(not twice, f"{names} name layer {_few(twice)} twice", ConfigError)
    base = 0 if 0 in named else 1
    expected = set(range(base, base + num_layers))
    extra = sorted(set(named) - expected)
    missing = sorted(expected - set(named))
    require(
        not extra and not missing,
        f"{names} (counted from {base}) do not cover the {num_layers} layers once each"
        + (f"; missing: {_few(missing)}" if missing else "")
        + (f"; no such layer: {_few(extra)}" if extra else ""),
        ConfigError,
    )
    return base, {name: tuple(sorted(i - base + 1 for i in ids)) for name, ids in lists.items()}


def _few(entries: Iterable[object]) -> str:
    found = [str(entry) if isinstance(entry, int) else shown(entry) for entry in entries]
    text = ", ".join(found[:8])
    return text if len(found) <= 8 else f"{text} and {len(found) - 8} more"


_ATTENTION_TYPES = ("full_attention", "deepseek_sparse_attention")


def _attention_places(fields: Fields, num_layers: int) -> tuple[int, ...] | None:
    """1-based places of the attention layers in ``layer_types``; None where the file has none."""
    if "layer_types" not in fields:
        return None
    types = [str(name) for name in fields.list("layer_types")]
    strange = sorted(set(types) - {"linear_attention", *_ATTENTION_TYPES})
    require(not strange, f"layer_types names {_few(strange)}", ConfigError)
    require(
        len(types) == num_layers,
        f"layer_types names {len(types)} layers, num_hidden_layers={num_layers}",
        ConfigError,
    )
    return tuple(place for place, name in enumerate(types, 1) if name in _ATTENTION_TYPES)


def _latent(fields: Fields) -> int:
    return fields.size("kv_lora_rank") + fields.size("qk_rope_head_dim", low=0)


def _kda_lists(fields: Fields) -> ParsedConfig:
    linear = Fields(fields.section("linear_attn_config"), "linear_attn_config.")
    num_layers = fields.size("num_hidden_layers")
    base, mla_ids = None, _attention_places(fields, num_layers)
    if mla_ids is None or "kda_layers" in linear:
        names = ("kda_layers", "full_attn_layers")
        base, ids = check_layers({name: linear.list(name) for name in names}, num_layers)
        require(
            mla_ids in (None, ids["full_attn_layers"]),
            "layer_types and linear_attn_config.full_attn_layers name different layers",
            ConfigError,
        )
        mla_ids = ids["full_attn_layers"]
    require(len(mla_ids) < num_layers, "kda_layers is empty: no state to plan", ConfigError)
    head_dim = linear.size("head_dim")
    value_dim = linear.size("v_head_dim", head_dim)
    require(
        value_dim == head_dim,
        f"linear_attn_config.v_head_dim={value_dim} differs from head_dim={head_dim}: KDA states "
        "are square",
        ConfigError,
    )
    return _finish(
        fields,
        family="kda-lists",
        index_base=base,
        inner=linear,
        num_kda_layers=num_layers - len(mla_ids),
        mla_layer_ids=mla_ids,
        num_heads=linear.size("num_heads"),
        dk=head_dim,
        dv=head_dim,
        conv_width=linear.size("short_conv_kernel_size"),
        mla_latent_dim=_latent(fields),
        gate_low_rank_dim=head_dim,
    )


def _kda_groups(fields: Fields) -> ParsedConfig:
    architectures = _names(fields, "architectures")
    markers = ("kda_lower_bound", "kda_safe_gate", "no_kda_lora")
    is_kda = any(name in fields for name in markers) or any(
        name.startswith("BailingMoeV3") for name in architectures
    )
    require(
        is_kda,
        f"layer_group_size without KDA fields ({', '.join(markers)}) or a BailingMoeV3 "
        "architecture: this is the older Lightning attention, whose state is not known here",
        ConfigError,
    )
    num_layers, period = fields.size("num_hidden_layers"), fields.size("layer_group_size")
    whole = num_layers // period * period
    mla_ids = tuple(i for i in range(1, num_layers + 1) if i % period == 0 or i > whole)
    heads, head_dim = fields.size("num_attention_heads"), fields.size("head_dim")
    return _finish(
        fields,
        family="kda-groups",
        index_base=None,
        num_kda_layers=num_layers - len(mla_ids),
        mla_layer_ids=mla_ids,
        num_heads=heads,
        dk=head_dim,
        dv=head_dim,
        conv_width=fields.size("short_conv_kernel_size"),
        mla_latent_dim=_latent(fields),
        gate_low_rank_dim=heads * head_dim if fields.flag("no_kda_lora") else head_dim,
    )


def _full_attention_cache(fields: Fields) -> dict[str, Any]:
    kv_heads = fields.size("num_key_value_heads")
    width = fields.one_of("head_dim", "attention_head_dim")
    return {"num_kv_heads": kv_heads, "mla_latent_dim": 2 * kv_heads * width}


def _gdn(fields: Fields) -> ParsedConfig:
    num_layers = fields.size("num_hidden_layers")
    full = _attention_places(fields, num_layers)
    if full is None or "full_attention_interval" in fields:
        period = fields.size("full_attention_interval")
        regular = tuple(range(period, num_layers + 1, period))
        require(
            full in (None, regular),
            f"layer_types and full_attention_interval={period} name different layers",
            ConfigError,
        )
        full = regular
    return _finish(
        fields,
        family="gdn",
        index_base=None,
        num_kda_layers=num_layers - len(full),
        mla_layer_ids=full,
        num_heads=fields.size("linear_num_value_heads"),
        num_key_heads=fields.size("linear_num_key_heads"),
        dk=fields.size("linear_key_head_dim"),
        dv=fields.size("linear_value_head_dim"),
        conv_width=fields.size("linear_conv_kernel_dim"),
        gate_low_rank_dim=1,
        kind="gdn",
        **_full_attention_cache(fields),
    )


_BLOCK_MARKS = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "moe": "E",
    "mlp": "-",
}


def _pattern(fields: Fields) -> str:
    """One character per layer: M Mamba-2, * attention, E MoE, - MLP."""
    pattern = fields.word("hybrid_override_pattern")
    if "layers_block_type" in fields or not pattern:
        types = [str(name) for name in fields.list("layers_block_type")]
        strange = sorted(set(types) - set(_BLOCK_MARKS))
        require(not strange, f"layers_block_type names {_few(strange)}", ConfigError)
        named = "".join(_BLOCK_MARKS[name] for name in types)
        require(
            pattern in ("", named),
            "hybrid_override_pattern and layers_block_type name different layers",
            ConfigError,
        )
        pattern = named
    strange = sorted(set(pattern) - set("M*E-"))
    require(not strange, f"the layer pattern holds {' '.join(strange[:8])}", ConfigError)
    num_layers = fields.size("num_hidden_layers", len(pattern))
    require(
        len(pattern) == num_layers,
        f"the layer pattern names {len(pattern)} layers, num_hidden_layers={num_layers}",
        ConfigError,
    )
    require("M" in pattern, "the layer pattern has no Mamba-2 layer: no state", ConfigError)
    return pattern


def _mamba2(fields: Fields) -> ParsedConfig:
    pattern = _pattern(fields)
    return _finish(
        fields,
        family="mamba2",
        index_base=None,
        num_kda_layers=pattern.count("M"),
        mla_layer_ids=layer_ids(pattern, "*"),
        other_layer_ids=layer_ids(pattern, "E-"),
        num_heads=fields.one_of("mamba_num_heads"),
        num_key_heads=fields.one_of("n_groups", "mamba_num_groups"),
        dk=fields.one_of("ssm_state_size", "mamba_state_dim", "mamba_d_state"),
        dv=fields.size("mamba_head_dim"),
        conv_width=fields.one_of("conv_kernel", "mamba_d_conv"),
        gate_low_rank_dim=1,
        kind="mamba2",
        **_full_attention_cache(fields),
    )


_DRAFTERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


def _names(fields: Fields, name: str) -> list[str]:
    found = fields.values.get(name) or []
    require(
        isinstance(found, list) and all(isinstance(entry, str) for entry in found),
        f"{name}={shown(found)} must be a list of text",
        ConfigError,
    )
    return [*found]


def _finish(
    fields: Fields,
    family: str,
    index_base: int | None,
    inner: Fields | None = None,
    **sizes: Any,
) -> ParsedConfig:
    require(sizes["mla_layer_ids"], "the config has no attention layer: no cache", ConfigError)
    notes = []
    indexer = fields.size("index_head_dim", 0, low=0)
    drafter = fields.one_of(*_DRAFTERS, default=0, low=0)
    if drafter:
        notes.append("drafter-layers")
    if indexer:
        notes.append("indexer-keys")
    formats = {w for n in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype") if (w := fields.word(n))}
    require(len(formats) < 2, "mamba_ssm_dtype and mamba_ssm_cache_dtype differ", ConfigError)
    state_dtype = "".join(formats)
    if state_dtype:
        notes.append("state-dtype")
    window = fields.size("sliding_window", 0, low=0)
    if fields.flag("use_sliding_window") or (window and "use_sliding_window" not in fields):
        notes.append("sliding-window")
    if fields.section("quantization_config").get("kv_cache_scheme") is not None:
        notes.append("kv-cache-scheme")
    _names(fields, "architectures")
    title = str(fields.values.get("_name_or_path") or fields.values.get("model_type") or family)
    preset = ModelPreset(
        code="custom",
        title=title[:60],
        mla_dtype="bfloat16",
        hidden_size=fields.size("hidden_size"),
        num_mla_heads=fields.size("num_attention_heads"),
        max_context_len=fields.size("max_position_embeddings", 0, low=0) or None,
        source="a config.json given by the reader",
        indexer_dim=indexer,
        indexer_pool=fields.size("index_kpool", 1),
        **sizes,
    )
    unknown = [n for n in fields.unread if n not in HARMLESS]
    if inner is not None:
        unknown += [inner.where + n for n in inner.unread if n not in HARMLESS_LINEAR]
    used = [*fields.used, *(inner.where + n for n in inner.used)] if inner else [*fields.used]
    return ParsedConfig(
        preset=preset,
        family=family,
        index_base=index_base,
        used=tuple(used),
        unknown=tuple(sorted(unknown)),
        notes=tuple(notes),
        drafter_layers=drafter,
        state_dtype=state_dtype,
    )
