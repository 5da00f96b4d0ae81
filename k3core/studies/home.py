"""Study of the first screen: one memory grows with the conversation, one does not. No torch."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import get_preset
from k3core.units import bytes_text

MIN_TOKENS, MAX_TOKENS = 64, 2**20
TOKEN_GRID = tuple(round(MIN_TOKENS * 2 ** (i / 8)) for i in range(8 * 14 + 1))


@dataclass(frozen=True)
class HomeStudy:
    """Both memories of one request on one rank.

    Tables:
        growth: bytes of each memory against the tokens of the conversation, a row per length.
        lines: the same, one row per memory and length.
        crossing: the length at which both weigh the same.
        ends: the last point of each line inside the picture, for its name.
    """

    tables: dict[str, pd.DataFrame]
    memory: RequestMemory

    @property
    def state_bytes_per_request(self) -> int:
        return self.memory.state_bytes_per_request

    @property
    def mla_bytes_per_token(self) -> int:
        return self.memory.mla_bytes_per_token

    @property
    def break_even_len(self) -> float:
        return self.memory.break_even_len

    @property
    def break_even_tokens(self) -> int:
        """First whole length at which the MLA cache weighs at least as much as the state."""
        return self.memory.break_even_tokens


def two_memories(
    model: str = "kimi-k3",
    tp: int = 8,
    state_dtype: str = "float32",
    mla_dtype: str = "float8",
) -> HomeStudy:
    """KDA and MLA bytes of one request against its length, per rank, all layers.

    Raises:
        CapacityError: unknown model, or ``tp`` does not divide its heads.
    """
    memory = RequestMemory(get_preset(model), tp, state_dtype, mla_dtype=mla_dtype)
    growth = pd.DataFrame(
        {
            "tokens": TOKEN_GRID,
            "kda": memory.state_bytes_per_request,
            "mla": [memory.kv_bytes(tokens) for tokens in TOKEN_GRID],
        }
    )
    growth["kda_text"] = bytes_text(memory.state_bytes_per_request)
    growth["mla_text"] = [bytes_text(size) for size in growth["mla"]]
    lines = growth.melt("tokens", ["kda", "mla"], "memory", "bytes")
    crossing = pd.DataFrame(
        {"tokens": [memory.break_even_len], "bytes": [float(memory.state_bytes_per_request)]}
    )
    ends = pd.DataFrame(
        [
            ("kda", MAX_TOKENS, memory.state_bytes_per_request),
            ("mla", MAX_TOKENS, memory.kv_bytes(MAX_TOKENS)),
        ],
        columns=["memory", "tokens", "bytes"],
    )
    return HomeStudy({"growth": growth, "lines": lines, "crossing": crossing, "ends": ends}, memory)
