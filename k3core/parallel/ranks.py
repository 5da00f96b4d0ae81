"""Ranks that share the prefill of one KDA layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from k3core import kda
from k3core.checks import compute_dtype, require_float, require_shape, wants_gradient
from k3core.errors import require, require_count, require_counts, shown
from k3core.parallel import affine
from k3core.parallel.affine import AffineMap
from k3core.parallel.layout import Layout
from k3core.parallel.traffic import (
    ConvolutionResult,
    PrefillResult,
    RankTraffic,
    all_gather_traffic,
)

SCANS = ("chain", "tree")


class KDAContextParallel:
    """Ranks in token order, each with one contiguous stretch of the sequence.

    The ranks live in this process; what they exchange are byte tensors, and nothing else passes
    between them.

    Args:
        world: number of ranks, >= 1.
        scan: "chain" merges the maps one after the other, "tree" in about ``log2(world)`` rounds.

    Raises:
        K3Error: bad `world` or `scan`.
    """

    def __init__(self, world: int, scan: str = "chain") -> None:
        require_count("world", world, 1)
        require(scan in SCANS, f"scan={shown(scan)} is unknown; allowed: {', '.join(SCANS)}")
        self.world = world
        self.scan = scan

    @staticmethod
    def communication_volume(
        B: int, H: int, dk: int, dv: int, world: int, itemsize: int = 4
    ) -> int:
        """Bytes that one rank contributes per layer, whatever the length; 0 when it is alone.

        Args:
            B, H: batch rows and heads on the rank.
            dk, dv: key and value sizes of a head.
            world: context-parallel ranks.
            itemsize: bytes per number; production chains the maps in float32.

        Raises:
            K3Error: an argument below 1.
        """
        sizes = {"B": B, "H": H, "dk": dk, "dv": dv, "world": world, "itemsize": itemsize}
        for name, value in sizes.items():
            require_count(name, value, 1)
        return 0 if world == 1 else B * H * dk * (dk + dv) * itemsize

    def split(self, num_tokens: int) -> tuple[int, ...]:
        """Tokens per rank: as even as can be, the first ranks take the remainder."""
        require_count("num_tokens", num_tokens, 1)
        share, rest = divmod(num_tokens, self.world)
        return tuple(share + (rank < rest) for rank in range(self.world))

    def layout(
        self,
        num_tokens: int,
        document_lens: Sequence[int] | None = None,
        rank_lens: Sequence[int] | None = None,
    ) -> Layout:
        """Cut `num_tokens` into documents (one by default) and ranks (even by default).

        Raises:
            K3Error: lengths do not add up to `num_tokens`, or `rank_lens` has not `world` entries.
        """
        even = self.split(num_tokens)
        documents = (
            (num_tokens,)
            if document_lens is None
            else require_counts("document_lens", document_lens, 1)
        )
        ranks = even if rank_lens is None else require_counts("rank_lens", rank_lens)
        require(
            len(ranks) == self.world,
            f"rank_lens={ranks} has {len(ranks)} entries; allowed: {self.world}, one per rank",
        )
        require(
            sum(ranks) == num_tokens,
            f"rank_lens={ranks} has {sum(ranks)} tokens; allowed: {num_tokens}",
        )
        return Layout(documents, ranks)

    def prefill(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor | None = None,
        *,
        document_lens: Sequence[int] | None = None,
        rank_lens: Sequence[int] | None = None,
    ) -> PrefillResult:
        """The result of `kda_recurrent` over each document, computed by all ranks.

        Args:
            q, k, g: (B, H, T, dk).
            v: (B, H, T, dv).
            beta: (B, H, T).
            state: (B, H, dk, dv) before the first document, or None for zeros; later documents
                start from zeros.
            document_lens: tokens of each document, in order, all >= 1; None is one document.
            rank_lens: tokens of each rank, >= 0; None splits evenly.

        Raises:
            K3Error: a shape does not fit, lengths do not add up to T, or a gradient is wanted: the
                messages between ranks are bytes, which carry none.
        """
        affine.require_sequences(k, v, g, beta)
        require_float("q", q)
        require_shape("q", q, tuple(k.shape))
        layout = self.layout(v.shape[2], document_lens, rank_lens)
        state = _initial_state(k, v, state, compute_dtype(q, k, v, g, beta))
        _require_no_gradient(q, k, v, g, beta, state)
        dtype = compute_dtype(q, k, v, g, beta, state)

        messages = []
        if self.world > 1:
            for rank in range(self.world):
                at = layout.tail(rank)
                tensors = (x[:, :, at].to(dtype) for x in (k, v, g, beta))
                messages.append(to_bytes(affine.transition_and_offset(*tensors)))
        # The last map is gathered like the others, but no rank stands behind it.
        maps = [
            _received_map(message.view(dtype), state.shape, layout.forgets(sender))
            for sender, message in enumerate(messages[:-1])
        ]
        scan = affine.scan_tree if self.scan == "tree" else affine.scan_chain
        incoming, merge_depth = scan(maps, state.to(dtype))

        outputs, document_states, initial_states = [], [], []
        for rank in range(self.world):
            pieces, running = layout.pieces(rank), incoming[rank].to(state.dtype)
            if pieces and layout.starts_afresh(pieces[0]):
                running = torch.zeros_like(state)
            initial_states.append(running)
            for piece in pieces:
                if layout.starts_afresh(piece):
                    running = torch.zeros_like(state)
                at = slice(piece.start, piece.end)
                out, running = kda.kda_recurrent(
                    q[:, :, at], k[:, :, at], v[:, :, at], g[:, :, at], beta[:, :, at], running
                )
                outputs.append(out)
                if layout.ends_document(piece):
                    document_states.append(running)
        return PrefillResult(
            torch.cat(outputs, dim=2),
            tuple(document_states),
            tuple(initial_states),
            all_gather_traffic(layout, messages),
            merge_depth,
        )

    def short_convolution(
        self,
        x: Tensor,
        weight: Tensor,
        window: Tensor | None = None,
        *,
        document_lens: Sequence[int] | None = None,
        rank_lens: Sequence[int] | None = None,
    ) -> ConvolutionResult:
        """`kda.short_convolution` over each document; ranks hand their last rows to the next ones.

        A rank sends its last W-1 rows (fewer if it is shorter) to every later rank whose halo
        reaches back to it within its document: the next one, or more behind very short ranks.

        Args:
            x: (B, T, C) raw inputs of q, k and v.
            weight: (C, W).
            window: (B, W-1, C) inputs before the first document, or None for zeros.
            document_lens, rank_lens: as in `prefill`.

        Raises:
            K3Error: a shape does not fit or lengths do not add up to T.
        """
        require_float("x", x)
        require_float("weight", weight)
        require(x.dim() == 3, f"x has shape {tuple(x.shape)}; allowed: (B, T, C)")
        require(
            weight.dim() == 2 and weight.shape[1] >= 1,
            f"weight has shape {tuple(weight.shape)}; allowed: (C, W), W >= 1",
        )
        (batch, num_tokens, channels), halo = x.shape, weight.shape[1] - 1
        layout = self.layout(num_tokens, document_lens, rank_lens)
        blank = x.new_zeros(batch, halo, channels)
        window = blank if window is None else window
        require_float("window", window)
        require_shape("window", window, tuple(blank.shape))
        _require_no_gradient(x, weight, window)
        messages = [
            to_bytes(x[:, max(start, end - halo) : end]) for start, end in layout.rank_bounds
        ]
        senders = [layout.senders(rank, reach=halo) for rank in range(self.world)]

        outputs = []
        for rank in range(self.world):
            rows = [messages[s].view(x.dtype).view(batch, -1, channels) for s in senders[rank]]
            for index, piece in enumerate(layout.pieces(rank)):
                before = window if piece.document == 0 else blank
                if rows and index == 0:
                    first, _ = layout.document_bounds[piece.document]
                    own = torch.cat(rows, dim=1)[:, -(piece.start - first) :]
                    before = torch.cat([before, own], dim=1)[:, -halo:]
                at = slice(piece.start, piece.end)
                out, last_window = kda.short_convolution(x[:, at], weight, before)
                outputs.append(out)
        traffic = tuple(
            RankTraffic(
                rank,
                start,
                end,
                sent_bytes=sum(messages[rank].nbytes for used in senders if rank in used),
                received_bytes=sum(messages[s].nbytes for s in senders[rank]),
                used_senders=senders[rank],
            )
            for rank, (start, end) in enumerate(layout.rank_bounds)
        )
        return ConvolutionResult(torch.cat(outputs, dim=1), last_window, traffic)


def _require_no_gradient(*tensors: Tensor | None) -> None:
    require(
        not wants_gradient(*tensors),
        "an argument has requires_grad=True, and messages between ranks carry no gradient; "
        "allowed: detached tensors, or any under torch.no_grad()",
    )


def to_bytes(x: Tensor) -> Tensor:
    """The bytes of `x` in row order, as they would go over a wire: (x.nbytes,) uint8."""
    return x.contiguous().view(-1).view(torch.uint8).clone()


def _received_map(numbers: Tensor, shape: torch.Size, forgets: bool) -> AffineMap:
    """The map in a message of one rank; `shape` is that of the state."""
    *lead, dk, dv = shape
    transition, offset = numbers.view(*lead, dk, dk + dv).split([dk, dv], dim=-1)
    return AffineMap(None if forgets else transition, offset)


def _initial_state(k: Tensor, v: Tensor, state: Tensor | None, dtype: torch.dtype) -> Tensor:
    shape = (*k.shape[:2], k.shape[-1], v.shape[-1])
    if state is None:
        return torch.zeros(shape, dtype=dtype, device=v.device)
    require_float("state", state)
    require_shape("state", state, shape)
    return state.clone()
