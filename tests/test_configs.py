"""Models read from config.json: nine public models, layer lists, and what must be refused."""

import contextlib
import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.capacity.configs import ConfigError, check_layers, parse_config
from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import MODELS
from k3core.errors import CapacityError
from tests.public_configs import GLM_5_3_FLASH, KIMI_K3, KIMI_LINEAR, PUBLIC, QWEN3_5_397B

CACHE_FIELDS = (
    "kind", "num_kda_layers", "mla_layer_ids", "other_layer_ids", "num_heads", "key_heads", "dk",
    "dv", "conv_width", "mla_latent_dim", "num_kv_heads", "num_mla_heads", "hidden_size",
)  # fmt: skip


@pytest.mark.parametrize("code", PUBLIC)
def test_public_config_gives_the_sizes_of_the_preset(code):
    preset = parse_config(json.dumps(PUBLIC[code])).preset
    known = MODELS[code]
    assert {f: getattr(preset, f) for f in CACHE_FIELDS} == {
        f: getattr(known, f) for f in CACHE_FIELDS
    }


@pytest.mark.parametrize("code", PUBLIC)
def test_public_config_gives_the_bytes_of_the_preset(code):
    from_file = RequestMemory(parse_config(PUBLIC[code]).preset, 1, mla_dtype="bfloat16")
    known = RequestMemory(MODELS[code], 1, mla_dtype="bfloat16")
    assert from_file.state_bytes_per_request == known.state_bytes_per_request
    assert from_file.mla_bytes_per_token == known.mla_bytes_per_token


@pytest.mark.parametrize(
    ("code", "tp", "layer"),
    [
        ("qwen3.5-397b", 1, 4_268_032),
        ("qwen3-next", 1, 2_146_304),
        ("nemotron-3-super", 1, 4_194_304 + 3 * (8192 + 2 * 8 * 128) * 2),
        ("ling-3.0-tiny", 1, 1_048_576 + 36_864),
        ("glm-5.3-flash", 64, 67_840),
    ],
)
def test_bytes_of_one_layer_are_the_published_ones(code, tp, layer):
    """Qwen3.5: 4,268,032 B; GLM at TP64: 67,840 B (vLLM on Neuron)."""
    assert RequestMemory(parse_config(PUBLIC[code]).preset, tp).kda_bytes_per_layer == layer


def test_lists_counted_from_0_and_from_1_are_told_apart():
    assert parse_config(KIMI_K3).index_base == 1
    assert parse_config(GLM_5_3_FLASH).index_base == 0
    assert parse_config(GLM_5_3_FLASH).preset.mla_layer_ids[:2] == (4, 8)


def test_what_the_sizes_leave_out_is_noted():
    assert parse_config(GLM_5_3_FLASH).notes == ("drafter-layers", "indexer-keys")
    assert parse_config(QWEN3_5_397B).drafter_layers == 1
    assert parse_config(KIMI_K3).notes == ()


def test_unknown_fields_are_reported_and_change_nothing():
    config = copy.deepcopy(KIMI_K3)
    config["text_config"]["state_compression"] = 4
    config["text_config"]["linear_attn_config"]["v_head_dim_extra"] = 1
    parsed = parse_config(config)
    assert parsed.unknown == ("linear_attn_config.v_head_dim_extra", "state_compression")
    assert parsed.preset == parse_config(KIMI_K3).preset


@pytest.mark.parametrize("code", PUBLIC)
def test_no_field_of_a_public_config_is_unknown_but_the_indexer_and_mtp(code):
    unknown = parse_config(PUBLIC[code]).unknown
    assert all(name.startswith(("index_", "mtp_")) for name in unknown), unknown


def _with_lists(**lists):
    config = copy.deepcopy(KIMI_LINEAR)
    config["linear_attn_config"] |= lists
    return config


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"full_attn_layers": [4, 8, 12, 16, 20, 24, 24, 27]}, "layer 24 twice"),
        ({"full_attn_layers": [4, 8, 12, 16, 20, 24]}, "missing: 27"),
        ({"full_attn_layers": [4, 8, 12, 16, 20, 24, 28]}, "no such layer: 28"),
        ({"full_attn_layers": [1, 4, 8, 12, 16, 20, 24, 27]}, "layer 1 twice"),
        ({"full_attn_layers": ["4"]}, "whole numbers"),
        ({"full_attn_layers": 4}, "must be a list"),
    ],
)
def test_layer_lists_that_do_not_name_each_layer_once_are_refused(lists, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(_with_lists(**lists))


@given(st.integers(1, 60), st.integers(0, 1), st.randoms(use_true_random=False))
def test_any_partition_is_read_back_whatever_its_base(num_layers, base, random):
    layers = list(range(base, base + num_layers))
    random.shuffle(layers)
    cut = random.randint(0, num_layers)
    found, ids = check_layers({"a": layers[:cut], "b": layers[cut:]}, num_layers)
    assert found == base
    assert ids["a"] == tuple(sorted(i - base + 1 for i in layers[:cut]))
    assert sorted(ids["a"] + ids["b"]) == list(range(1, num_layers + 1))


@given(st.integers(2, 60), st.integers(0, 1), st.randoms(use_true_random=False))
def test_a_lost_or_repeated_layer_is_never_read(num_layers, base, random):
    layers = list(range(base, base + num_layers))
    lost = random.choice(layers[1:-1] or layers[:1])
    rest = [i for i in layers if i != lost]
    with pytest.raises(ConfigError):
        check_layers({"a": rest}, num_layers)
    with pytest.raises(ConfigError):
        check_layers({"a": layers, "b": [lost]}, num_layers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "no JSON"),
        ("[1, 2]", "no JSON object"),
        ('{"model_type": "llama", "num_hidden_layers": 32}', "llama.*no known hybrid"),
        ('{"linear_num_value_heads": 32}', "lacks num_hidden_layers"),
        (json.dumps({"layer_group_size": 8, "num_hidden_layers": 32}), "Lightning"),
        (json.dumps({"linear_attn_config": {"kda_layers": []}, "num_hidden_layers": 4}), "must be"),
        ('{"hybrid_override_pattern": "MX*", "n_groups": 8}', "holds X"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_known_hybrid_is_refused_with_the_reason(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(text)


@pytest.mark.parametrize("value", [0, -1, 3.5, "96", True, [96], 10**30])
def test_a_size_that_is_no_count_is_refused_by_name(value):
    config = copy.deepcopy(KIMI_K3)
    config["text_config"]["linear_attn_config"]["num_heads"] = value
    with pytest.raises(ConfigError, match="num_heads"):
        parse_config(config)


def test_a_pattern_of_the_wrong_length_is_refused():
    config = PUBLIC["nemotron-3-super"] | {"num_hidden_layers": 87}
    with pytest.raises(ConfigError, match="names 88 layers, num_hidden_layers=87"):
        parse_config(config)


def test_block_types_by_name_and_by_character_agree():
    """Nemotron configs saved by transformers carry names instead of characters."""
    config = dict(PUBLIC["nemotron-3-super"])
    pattern = config.pop("hybrid_override_pattern")
    names = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
    config["layers_block_type"] = [names[mark] for mark in pattern]
    assert parse_config(config).preset == parse_config(PUBLIC["nemotron-3-super"]).preset


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=20,
    )
)
def test_any_json_is_read_or_refused_by_the_error_type(value):
    with contextlib.suppress(CapacityError):
        parse_config(json.dumps({"linear_attn_config": value, "num_hidden_layers": value}))


@pytest.mark.parametrize("num_layers", [10**9, 10**18])
@pytest.mark.parametrize("code", ["kimi-linear-48b", "ling-3.0-flash", "qwen3-next"])
def test_a_file_with_absurd_sizes_is_refused_at_once(code, num_layers):
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        parse_config(PUBLIC[code] | {"num_hidden_layers": num_layers})


def test_a_long_list_of_repeated_layers_is_refused_at_once():
    layers = [*range(1, 28)] * 10_000
    with pytest.raises(ConfigError, match="twice"):
        parse_config(_with_lists(kda_layers=layers))


def test_indexer_keys_are_read_and_counted_apart():
    """GLM-5.3-Flash: a key of 128 per four tokens and layer; fp8 with an fp32 scale is 132 B."""
    parsed = parse_config(GLM_5_3_FLASH)
    assert (parsed.preset.indexer_dim, parsed.preset.indexer_pool) == (128, 4)
    memory, known = (RequestMemory(p, 8) for p in (parsed.preset, MODELS["glm-5.3-flash"]))
    assert memory.indexer_bytes_per_token == known.indexer_bytes_per_token == 11 * 132 / 4
    assert memory.kv_bytes(100) == 100 * 11 * 512 * 2
    assert RequestMemory(MODELS["kimi-k3"]).indexer_bytes_per_token == 0


def _glm_with_types(lists=True, wrong=False):
    config = copy.deepcopy(GLM_5_3_FLASH)
    inner = config["text_config"]
    kinds = ["linear_attention"] * 3 + ["deepseek_sparse_attention"]
    inner["layer_types"] = (kinds * 12)[:45]
    if wrong:
        inner["layer_types"][0] = "deepseek_sparse_attention"
    if not lists:
        for name in ("kda_layers", "full_attn_layers"):
            del inner["linear_attn_config"][name]
    return config


@pytest.mark.parametrize("lists", [True, False])
def test_types_per_layer_say_the_same_as_the_lists_or_stand_for_them(lists):
    parsed = parse_config(_glm_with_types(lists))
    assert parsed.preset == parse_config(GLM_5_3_FLASH).preset
    assert "layer_types" not in parsed.unknown


def test_types_per_layer_that_contradict_the_lists_are_refused():
    with pytest.raises(ConfigError, match="different layers"):
        parse_config(_glm_with_types(wrong=True))


def _changed(code, inner=None, **fields):
    """A public file with other fields; DROP removes one, ``inner`` goes into the KDA section."""
    config = copy.deepcopy(PUBLIC[code])
    text = config.get("text_config", config)
    text |= fields
    if inner:
        text["linear_attn_config"] |= inner
    for values in (text, text["linear_attn_config"] if inner else {}):
        for name in [name for name, value in values.items() if value is DROP]:
            del values[name]
    return config


DROP = object()


@pytest.mark.parametrize(
    ("code", "fields", "message"),
    [
        ("ling-3.0-flash", {"architectures": 5, "kda_lower_bound": None}, "architectures=5"),
        ("kimi-linear-48b", {"architectures": [5]}, r"architectures=\[5\]"),
        ("kimi-linear-48b", {"linear_attn_config": 5}, "linear_attn_config=5"),
        ("kimi-k3", {"quantization_config": "fp8"}, "quantization_config='fp8'"),
        ("ling-3.0-flash", {"no_kda_lora": "false"}, "no_kda_lora='false'"),
        ("ling-3.0-flash", {"no_kda_lora": 1}, "no_kda_lora=1"),
        ("nemotron-3-super", {"hybrid_override_pattern": 5}, "hybrid_override_pattern=5"),
        ("nemotron-3-super", {"mamba_ssm_cache_dtype": 5}, "mamba_ssm_cache_dtype=5"),
        ("qwen3-next", {"layer_types": 5}, "layer_types=5"),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(code, fields, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(json.dumps(_changed(code, **fields)))


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("kimi-k3", "qk_rope_head_dim"), ("kimi-k3", "hidden_size"),
        ("kimi-k3", "num_attention_heads"), ("ling-3.0-flash", "short_conv_kernel_size"),
        ("qwen3-next", "linear_conv_kernel_dim"), ("qwen3-next", "num_key_value_heads"),
        ("qwen3-next", "head_dim"), ("nemotron-3-super", "hidden_size"),
    ],
)  # fmt: skip
def test_a_missing_size_is_named_and_never_guessed(code, name):
    with pytest.raises(ConfigError, match=f"lacks {name}"):
        parse_config(_changed(code, **{name: DROP}))


def test_a_missing_size_of_the_linear_layers_is_named():
    with pytest.raises(ConfigError, match=r"lacks linear_attn_config\.short_conv_kernel_size"):
        parse_config(_changed("kimi-k3", inner={"short_conv_kernel_size": DROP}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (_changed("kimi-k3", inner={"v_head_dim": 64}), "v_head_dim=64 differs from head_dim=128"),
        (_changed("nemotron-3-super", mamba_num_groups=4), "n_groups=8 and mamba_num_groups=4"),
        (_changed("qwen3.5-397b", full_attention_interval=5), "full_attention_interval=5"),
        (PUBLIC["kimi-k3"] | {"num_hidden_layers": 92}, "num_hidden_layers=92 at the top"),
        (PUBLIC["kimi-k3"] | {"llm_config": {}}, "two text models"),
        (_changed("nemotron-3-super", layers_block_type=["mamba"] * 88), "different layers"),
        (_changed("kimi-k3", num_mtp_layers=3), "num_nextn_predict_layers=0 and num_mtp_layers=3"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(config)


def test_a_field_that_is_given_twice_is_refused():
    with pytest.raises(ConfigError, match="names 'num_hidden_layers' twice"):
        parse_config('{"num_hidden_layers": 27, "num_hidden_layers": 28}')


def test_a_number_without_end_is_refused_by_name():
    text = json.dumps(KIMI_K3).replace('"num_heads": 96', '"num_heads": ' + "9" * 5000)
    with pytest.raises(ConfigError, match=r"num_heads=9.* has 5000 digits"):
        parse_config(text)


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(ConfigError, match="surrogate"):
        parse_config(json.dumps(_changed("kimi-linear-48b", _name_or_path="\ud800")))


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"use_sliding_window": True}, "sliding-window"),
        ({"sliding_window": 4096}, "sliding-window"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "kv-cache-scheme"),
        ({"num_mtp_layers": 3}, "drafter-layers"),
    ],
)
def test_what_changes_the_cache_is_noted(fields, note):
    assert parse_config(_changed("qwen3-next", **fields)).notes == (note,)
    quiet = {"use_sliding_window": False, "sliding_window": 4096, "num_mtp_layers": 0}
    assert parse_config(_changed("qwen3-next", **quiet)).notes == ()


def test_a_field_without_a_value_is_not_reported():
    assert parse_config(_changed("kimi-k3", new_field=None)).unknown == ()
