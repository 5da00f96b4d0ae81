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
        message_by_length: the message alone: ``sent`` by one rank, ``received`` from the others.
    """

    tables: dict[str, pd.DataFrame]
    state_bytes_per_request: int
    mla_bytes_per_token: int
    message_bytes: int
    num_kda_layers: int
    num_mla_layers: int

    @property
    def state_equal_tokens(self) -> int:
        """First length whose MLA rows weigh as much as the KDA states."""
        return -(-self.state_bytes_per_request // self.mla_bytes_per_token)

    @property
    def message_equal_tokens(self) -> int:
        """First length whose MLA rows weigh as much as the message (0 without one)."""
        return -(-self.message_bytes // self.mla_bytes_per_token)


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
    alone = pd.DataFrame(
        [
            (length, way, count * message)
            for length in LENGTHS
            for way, count in (("sent", 1), ("received", world - 1))
        ],
        columns=["num_tokens", "way", "bytes"],
    )
    return GrowthStudy(
        {"bytes_by_length": by_length, "message_by_length": alone},
        memory.state_bytes_per_request,
        memory.mla_bytes_per_token,
        message,
        preset.num_kda_layers,
        preset.num_mla_layers,
    )
