"""Prefill time from a declared cost model: a constant, a linear and a quadratic part.

    seconds(n, cached) = fixed + linear * (n - cached) + quadratic * (n**2 - cached**2)

The linear part is everything that one token costs whatever came before it (projections, experts,
the KDA scan); the quadratic part is attention over the earlier tokens. Only tokens that are
really computed count: a reused prefix is deducted, but the rest still attends to it.

Seconds are those of the declared model, not measurements: K3's report publishes no prefill times.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3core.capacity.presets import PRESETS, ModelPreset
from k3core.errors import K3Error, require

PEAK_FLOPS_PER_S = 8 * 989e12
"""Eight H100/H200 in dense bf16 (data sheet): the declared default node of a cluster."""

EFFICIENCY = 0.58
"""Share of the peak that prefill reaches: implied by FAST'25 Fig. 10 (0.55 to 0.61)."""

KDA_CHUNK_LEN = 64

_MLA_HEAD_DIMS = {  # query/key and value width of one MLA head, from the models' config.json
    "kimi-k3": (192, 128),
    "kimi-linear-48b": (192, 128),
    "glm-5.3-flash": (256, 256),  # its sparse top-k is not modelled: an upper bound
}


@dataclass(frozen=True)
class PrefillCost:
    """Seconds to prefill a prompt.

    Attributes:
        code: stable name.
        linear_s: seconds per computed token.
        quadratic_s: seconds per squared token of context.
        fixed_s: seconds per request, whatever its length.
        source: where the constants come from.
        peak_flops_per_s, efficiency: rate of the node that the seconds were computed for; 0 when
            they were given as seconds.
    """

    code: str
    linear_s: float
    quadratic_s: float = 0.0
    fixed_s: float = 0.0
    source: str = "declared"
    peak_flops_per_s: float = 0.0
    efficiency: float = 0.0

    def __post_init__(self) -> None:
        for name in ("linear_s", "quadratic_s", "fixed_s"):
            value = getattr(self, name)
            require(0 <= value < float("inf"), f"{name}={value} must be finite and >= 0")

    def seconds(self, input_len: int, cached_len: int = 0) -> float:
        """Time to prefill ``input_len`` tokens of which ``cached_len`` are reused."""
        return (
            self.fixed_s
            + self.linear_s * (input_len - cached_len)
            + self.quadratic_s * (input_len * input_len - cached_len * cached_len)
        )

    @classmethod
    def from_flops(
        cls,
        code: str,
        linear_flops: float,
        quadratic_flops: float,
        peak_flops_per_s: float = PEAK_FLOPS_PER_S,
        efficiency: float = EFFICIENCY,
        fixed_s: float = 0.0,
        source: str = "declared",
    ) -> PrefillCost:
        """Cost of work given in FLOPs per token and per squared token.

        Raises:
            K3Error: a rate that is not positive, or an efficiency outside (0, 1].
        """
        require(peak_flops_per_s > 0, f"peak_flops_per_s={peak_flops_per_s} must be > 0")
        require(0 < efficiency <= 1, f"efficiency={efficiency} must be in (0, 1]")
        rate = peak_flops_per_s * efficiency
        return cls(
            code,
            linear_flops / rate,
            quadratic_flops / rate,
            fixed_s,
            source,
            peak_flops_per_s,
            efficiency,
        )

    @property
    def linear_flops(self) -> float:
        """FLOPs per computed token; 0 when the model was given in seconds."""
        return self.linear_s * self.peak_flops_per_s * self.efficiency

    @property
    def quadratic_flops(self) -> float:
        """FLOPs per squared token of context; 0 when the model was given in seconds."""
        return self.quadratic_s * self.peak_flops_per_s * self.efficiency

    @classmethod
    def from_preset(
        cls,
        preset: ModelPreset,
        peak_flops_per_s: float = PEAK_FLOPS_PER_S,
        efficiency: float = EFFICIENCY,
    ) -> PrefillCost:
        """Cost of a hybrid model from its published sizes.

        Linear, per token: 2 FLOPs per active parameter, and per KDA layer and head
        6 d^2 + 3 C d + C^2 (Kimi-Linear report; C = 64, d = dk). Quadratic: causal attention of
        the MLA layers, H * (qk + v) FLOPs per squared token.

        Raises:
            K3Error: the preset does not publish its active parameters or MLA head widths.
        """
        dims = _MLA_HEAD_DIMS.get(preset.code)
        if preset.active_params is None or dims is None:
            raise K3Error(
                f"model={preset.code!r} publishes no active parameters or head widths; "
                f"use one of {', '.join(_MLA_HEAD_DIMS)}"
            )
        dk, chunk = preset.dk, KDA_CHUNK_LEN
        scan = preset.num_kda_layers * preset.num_heads * (6 * dk * dk + 3 * chunk * dk + chunk**2)
        attention = preset.num_mla_layers * preset.num_mla_heads * sum(dims)
        return cls.from_flops(
            preset.code,
            2 * preset.active_params + scan,
            attention,
            peak_flops_per_s,
            efficiency,
            source=f"{preset.title} sizes on {peak_flops_per_s / 1e12:,.0f} TFLOP/s "
            f"at {efficiency:.0%}",
        )


def _mooncake_llama3_70b() -> PrefillCost:
    """FAST'25 Eq. 1 and Table 1: l (a n^2 d + b n d^2), l = 80, d = 8192, a = 4, b = 22."""
    num_layers, width, quadratic, linear = 80, 8192, 4, 22
    return PrefillCost.from_flops(
        "mooncake-llama3-70b",
        num_layers * linear * width**2,
        num_layers * quadratic * width,
        peak_flops_per_s=8 * 312e12,
        source="Mooncake FAST'25 Eq. 1, Table 1: LLaMA3-70B on 8 x 312 TFLOP/s at 58%",
    )


COST_PRESETS: dict[str, PrefillCost] = {
    **{code: PrefillCost.from_preset(PRESETS[code]) for code in _MLA_HEAD_DIMS},
    "mooncake-llama3-70b": _mooncake_llama3_70b(),
}


def prefill_cost(code: str) -> PrefillCost:
    """A preset by its code.

    Raises:
        K3Error: unknown code.
    """
    if code not in COST_PRESETS:
        raise K3Error(f"cost={code!r} is unknown; allowed: {', '.join(COST_PRESETS)}")
    return COST_PRESETS[code]
