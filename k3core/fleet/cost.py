"""Prefill time from a declared cost model: a constant, a linear and a quadratic part.

    seconds(n, cached) = fixed + linear * (n - cached) + quadratic * (n**2 - cached**2)

The linear part is everything that one token costs whatever came before it (projections, experts,
the KDA scan); the quadratic part is attention over the earlier tokens. Only tokens that are
really computed count: a reused prefix is deducted, but the rest still attends to it.

Seconds are those of the declared model, not measurements: K3's report publishes no prefill times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3core.capacity.presets import PRESETS, ModelPreset
from k3core.errors import (
    K3Error,
    require,
    require_choice,
    require_count,
    require_number,
    require_type,
    shown,
)
from k3core.fleet.columns import MAX_TOKENS

PEAK_FLOPS_PER_S = 8 * 989e12
"""Eight H100/H200 in dense bf16 (data sheet): the declared default node of a cluster."""

EFFICIENCY = 0.58
"""Share of the peak that prefill reaches: implied by FAST'25 Fig. 10 (0.55 to 0.61)."""

KDA_CHUNK_LEN = 64

LONG_PREFIX_LEN, LONG_PREFIX_NEW = 400_000, 4_000
"""Tokens of a long prefix and behind it: the example of K3 report 5.4 that the pages price."""

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
        for name in ("linear_s", "quadratic_s", "fixed_s", "peak_flops_per_s", "efficiency"):
            require_number(name, getattr(self, name), least=0)
        for name in ("code", "source"):
            require_type(name, getattr(self, name), str)

    def seconds(self, input_len: int, cached_len: int = 0) -> float:
        """Time to prefill ``input_len`` tokens of which ``cached_len`` are reused.

        Not checked: the event loop asks it for every request.
        """
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
        require_number("linear_flops", linear_flops, least=0)
        require_number("quadratic_flops", quadratic_flops, least=0)
        rate = _rate(peak_flops_per_s, efficiency)
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
    def calibrated(
        cls, measured: Sequence[tuple[int, int, float]], code: str = "calibrated"
    ) -> PrefillCost:
        """The cost model that fits measured prefills best.

        Two triples fix the linear and the quadratic part; with three or more the constant part is
        fitted as well: least squares of the relative error, no part below 0.

        Args:
            measured: (prompt tokens, cached tokens, seconds to first token), alone on the node.
            code: name of the result.

        Raises:
            K3Error: fewer than two triples, one that is impossible, or lengths that cannot tell
                the parts apart.
        """
        is_sequence = isinstance(measured, Sequence)
        require(is_sequence, f"measured={shown(measured)} must be a sequence of triples")
        require(len(measured) >= 2, f"measured has {len(measured)} triples; two or more are needed")
        for triple in measured:
            _check_measured(triple)
        rows = np.array([(n - c, n * n - c * c, 1.0) for n, c, _ in measured], np.float64)
        target = np.array([seconds for _, _, seconds in measured])
        parts = _least_squares(rows[:, : 3 if len(measured) > 2 else 2], target)
        linear_s, quadratic_s, fixed_s = (*parts, 0.0)[:3]
        return cls(
            code,
            float(linear_s),
            float(quadratic_s),
            float(fixed_s),
            f"fitted to {len(measured)} measured prefills",
        )

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
        require_type("preset", preset, ModelPreset)
        _rate(peak_flops_per_s, efficiency)
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


def _rate(peak_flops_per_s: float, efficiency: float) -> float:
    """FLOP/s that prefill reaches."""
    require_number("peak_flops_per_s", peak_flops_per_s, above=0)
    return peak_flops_per_s * require_number("efficiency", efficiency, above=0, most=1)


def _check_measured(triple: object) -> None:
    words = f"measured: {shown(triple)} must have 0 <= cached < prompt and positive seconds"
    if not isinstance(triple, (tuple, list)) or len(triple) != 3:
        raise K3Error(words)
    input_len, cached_len, seconds = triple
    try:
        require_count(
            "cached", cached_len, 0, require_count("prompt", input_len, 1, MAX_TOKENS) - 1
        )
        require_number("seconds", seconds, above=0)
    except K3Error:
        raise K3Error(words) from None


def _least_squares(rows: NDArray[np.float64], target: NDArray[np.float64]) -> list[float]:
    """Coefficients >= 0 with the least squared relative error: the best subset of columns."""
    num_parts = rows.shape[1]
    weighted = rows / target[:, None]
    scale = np.abs(weighted).max(axis=0)
    weighted = weighted / scale
    best: tuple[float, list[float]] | None = None
    for chosen in range(1, 1 << num_parts):
        columns = [part for part in range(num_parts) if chosen >> part & 1]
        found, _, rank, _ = np.linalg.lstsq(weighted[:, columns], np.ones(len(target)), rcond=1e-12)
        if rank < len(columns):
            require(
                chosen != (1 << num_parts) - 1,
                "measured: the lengths are too much alike to tell the parts of the cost apart",
            )
            continue
        if (found < 0).any():
            continue
        error = float(np.square(weighted[:, columns] @ found - 1).sum())
        if best is None or error < best[0] - 1e-15:
            values = [0.0] * num_parts
            for part, value in zip(columns, found, strict=True):
                values[part] = float(value / scale[part])
            best = (error, values)
    if best is None:
        raise K3Error("measured: no cost with parts >= 0 fits")
    return best[1]


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
    return COST_PRESETS[require_choice("cost", code, COST_PRESETS)]
