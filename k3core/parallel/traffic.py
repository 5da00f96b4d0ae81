"""What ranks send each other, what comes of it, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from k3core.errors import require_count, require_number
from k3core.parallel.layout import Layout


@dataclass(frozen=True)
class RankTraffic:
    """What one rank held, sent and received; bytes are sizes of tensors that really existed.

    Attributes:
        rank: index in the sequence order.
        start, end: tokens ``start <= t < end`` of this rank.
        sent_bytes: the message that this rank contributed.
        received_bytes: messages of other ranks that arrived here.
        used_senders: the ranks whose message changed the result here.
    """

    rank: int
    start: int
    end: int
    sent_bytes: int
    received_bytes: int
    used_senders: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class PrefillResult:
    """Outcome of a context-parallel prefill.

    Attributes:
        outputs: (B, H, T, dv).
        document_states: (B, H, dk, dv) after the last token of each document.
        initial_states: (B, H, dk, dv) from which each rank really started.
        traffic: one entry per rank.
        merge_depth: dependent merges on the longest path.
    """

    outputs: Tensor
    document_states: tuple[Tensor, ...]
    initial_states: tuple[Tensor, ...]
    traffic: tuple[RankTraffic, ...]
    merge_depth: int

    @property
    def final_state(self) -> Tensor:
        """(B, H, dk, dv) after the last token of the last document."""
        return self.document_states[-1]


@dataclass(frozen=True)
class ConvolutionResult:
    """Outcome of a context-parallel short convolution.

    Attributes:
        outputs: (B, T, C).
        final_window: (B, W-1, C) last inputs of the last document, oldest first.
        traffic: one entry per rank.
    """

    outputs: Tensor
    final_window: Tensor
    traffic: tuple[RankTraffic, ...]


def all_gather_traffic(layout: Layout, messages: Sequence[Tensor]) -> tuple[RankTraffic, ...]:
    """Every rank gets every message; without messages the rank was alone."""
    total = sum(message.nbytes for message in messages)
    sent = [message.nbytes for message in messages] or [0]
    return tuple(
        RankTraffic(
            rank,
            start,
            end,
            sent_bytes=sent[rank],
            received_bytes=total - sent[rank],
            used_senders=layout.senders(rank),
        )
        for rank, (start, end) in enumerate(layout.rank_bounds)
    )


def all_gather_seconds(
    sent_bytes: int, world: int, bandwidth_bytes_per_s: float, latency_s: float
) -> float:
    """Time of a ring all-gather: ``(world - 1) * (latency + sent_bytes / bandwidth)``.

    Raises:
        K3Error: a negative size or latency, `world` below 1 or a bandwidth that is not positive.
    """
    require_count("sent_bytes", sent_bytes, 0)
    require_count("world", world, 1)
    require_number("bandwidth_bytes_per_s", bandwidth_bytes_per_s, above=0)
    require_number("latency_s", latency_s, least=0)
    return (world - 1) * (latency_s + sent_bytes / bandwidth_bytes_per_s)
