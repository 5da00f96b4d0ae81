"""Model descriptions: layers, heads, sources, what an impossible model says."""

import pytest

from k3core.capacity.presets import PRESETS, get_preset
from k3core.errors import CapacityError
from tests.capacity_helpers import GLM, K3, LINEAR, model


def test_k3_has_69_kda_and_24_mla_layers_and_ends_with_two_mla_layers():
    """config.json of Kimi K3: full_attn_layers 4, 8, ..., 92, 93 (1-based) of 93."""
    assert (K3.num_kda_layers, K3.num_mla_layers, K3.num_layers) == (69, 24, 93)
    assert K3.mla_layer_ids[:2] == (4, 8)
    assert K3.mla_layer_ids[-2:] == (92, 93)
    assert K3.kda_layer_ids[0] == 1


def test_kimi_linear_has_20_kda_and_7_mla_layers():
    """config.json of Kimi-Linear-48B-A3B: 27 layers."""
    assert (LINEAR.num_kda_layers, LINEAR.num_mla_layers, LINEAR.num_layers) == (20, 7, 27)


def test_glm_has_34_kda_and_11_mla_layers_and_ends_with_kda():
    """ATOM #2051: 45 trunk layers, MLA at 3, 7, ..., 43 counted from 0; layer 44 is KDA."""
    assert (GLM.num_kda_layers, GLM.num_mla_layers) == (34, 11)
    assert [i - 1 for i in GLM.mla_layer_ids] == list(range(3, 44, 4))
    assert GLM.kda_layer_ids[-1] == 45


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda p: p.code)
def test_layer_ids_of_both_kinds_partition_the_layers(preset):
    both = sorted(preset.kda_layer_ids + preset.mla_layer_ids)
    assert both == list(range(1, preset.num_layers + 1))
    assert len(preset.kda_layer_ids) == preset.num_kda_layers


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda p: p.code)
def test_every_preset_names_its_source_and_offers_tp8(preset):
    assert preset.source
    assert 8 in preset.valid_tps


def test_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(CapacityError, match=r"kimi-k4.*kimi-k3"):
        get_preset("kimi-k4")


@pytest.mark.parametrize(
    "changes", [{"mla_layer_ids": (0,)}, {"mla_layer_ids": (4, 4)}, {"dk": 0}, {"num_heads": -1}]
)
def test_impossible_model_is_refused(changes):
    """0-based or repeated layer ids are how layer maps go wrong (inference-sim #1635)."""
    with pytest.raises(CapacityError):
        model(**changes)
