"""Production bytes that grow with the text, and those that do not."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import PRESETS
from k3core.parallel import KDAContextParallel
from k3core.studies import single_thread  # noqa: F401

LENGTHS = tuple(512 * 2**i for i in range(12))


@dataclass(frozen=True)
class GrowthStudy:
    """Production bytes of one request on one rank, all layers, against the length of its text.

    Tables:
        bytes_by_length: MLA rows, KDA states, context-parallel message.
        message_by_length: the message alone.
    """

    tables: dict[str, pd.DataFrame]
    state_bytes_per_request: int
    mla_bytes_per_token: int
    message_bytes: int


def growth(
    model: str = "kimi-k3", tp: int = 8, mla_dtype: str = "float8", world: int = 8
) -> GrowthStudy:
    """What grows with the text and what does not.

    Args:
        model, tp, mla_dtype: preset, tensor-parallel degree, format of the MLA rows.
        world: context-parallel ranks; one rank sends nothing.

    Raises:
        K3Error: the model cannot be served like this.
    """
    preset = PRESETS[model]
    memory = RequestMemory(preset, tp, mla_dtype=mla_dtype)
    message = preset.num_kda_layers * KDAContextParallel.communication_volume(
        1, memory.num_heads, preset.dk, preset.dv, world
    )
    rows = []
    for length in LENGTHS:
        rows.append((length, "mla", memory.kv_bytes(length)))
        rows.append((length, "kda", memory.state_bytes_per_request))
        rows.append((length, "kcp", message))
    by_length = pd.DataFrame(rows, columns=["num_tokens", "kind", "bytes"])
    alone = by_length[by_length["kind"] == "kcp"].drop(columns="kind").reset_index(drop=True)
    return GrowthStudy(
        {"bytes_by_length": by_length, "message_by_length": alone},
        memory.state_bytes_per_request,
        memory.mla_bytes_per_token,
        message,
    )
