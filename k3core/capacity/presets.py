"""Published sizes of hybrid models, as data: what a serving layer needs to count bytes.

Sizes are those of the whole model; `k3core.capacity.memory` divides them by the parallel degree.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3core.errors import CapacityError, require

_COMMON_TPS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class ModelPreset:
    """Sizes of one hybrid model: linear-attention (KDA) layers beside MLA layers.

    Attributes:
        code: stable name, used in URLs and on the command line.
        title: the model's own name, the same in every language.
        num_kda_layers: layers with a recurrent state of constant size.
        mla_layer_ids: 1-based indices of the layers with a latent cache that grows per token.
        num_heads: KDA heads of the whole model.
        dk: key size of a KDA head; the state of one head is ``dk x dv``.
        dv: value size of a KDA head.
        conv_width: W of the short convolution; the window holds W-1 rows of q, k and v inputs.
        mla_latent_dim: numbers cached per token and MLA layer (compressed KV plus rope slot).
        mla_dtype: default format of the MLA cache.
        hidden_size: width of the residual stream.
        num_mla_heads: query heads of an MLA layer; the cache does not depend on it.
        gate_low_rank_dim: width of the low-rank input from which the decay gate is projected.
        source: where the sizes are published.
        total_params: parameters of the model, or None where not published.
        active_params: parameters that one token uses, or None where not published.
        max_context_len: longest sequence in tokens, or None where not published.
        note: what the sizes leave out, or an empty string.
    """

    code: str
    title: str
    num_kda_layers: int
    mla_layer_ids: tuple[int, ...]
    num_heads: int
    dk: int
    dv: int
    conv_width: int
    mla_latent_dim: int
    mla_dtype: str
    hidden_size: int
    num_mla_heads: int
    gate_low_rank_dim: int
    source: str
    total_params: float | None = None
    active_params: float | None = None
    max_context_len: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("num_kda_layers", "num_heads", "dk", "dv", "conv_width", "mla_latent_dim"):
            value = getattr(self, name)
            require(value >= 1, f"{name}={value} must be at least 1", CapacityError)
        ids = self.mla_layer_ids
        require(
            all(1 <= i <= self.num_layers for i in ids) and len(set(ids)) == len(ids),
            f"mla_layer_ids={ids} must be distinct 1-based indices up to {self.num_layers}",
            CapacityError,
        )

    @property
    def num_mla_layers(self) -> int:
        return len(self.mla_layer_ids)

    @property
    def num_layers(self) -> int:
        return self.num_kda_layers + self.num_mla_layers

    @property
    def kda_layer_ids(self) -> tuple[int, ...]:
        """1-based indices of the KDA layers: all that are not MLA."""
        mla = set(self.mla_layer_ids)
        return tuple(i for i in range(1, self.num_layers + 1) if i not in mla)

    @property
    def valid_tps(self) -> tuple[int, ...]:
        """Tensor-parallel degrees in common use that divide the heads."""
        return tuple(tp for tp in _COMMON_TPS if self.num_heads % tp == 0)

    def heads_per_rank(self, tp: int) -> int:
        """KDA heads on one rank.

        Raises:
            CapacityError: ``tp`` does not divide the heads; the message lists the degrees that do.
        """
        if tp < 1 or self.num_heads % tp:
            allowed = [d for d in range(1, self.num_heads + 1) if self.num_heads % d == 0]
            raise CapacityError(
                f"tp={tp} does not divide the {self.num_heads} KDA heads of {self.code}; "
                f"use one of {', '.join(map(str, allowed))}"
            )
        return self.num_heads // tp


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
    source="vLLM #54458, unslothai/llama.cpp #116, ATOM #2051 (64 heads of 128 follow from the "
    "logged page size)",
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


def get_preset(code: str) -> ModelPreset:
    """The preset with this code.

    Raises:
        CapacityError: the code is unknown; the message lists the known ones.
    """
    if code not in PRESETS:
        raise CapacityError(f"model={code!r} is unknown; allowed: {', '.join(PRESETS)}")
    return PRESETS[code]
