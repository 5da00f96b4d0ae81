"""Where documents and ranks cut a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from k3core.errors import require, require_count, require_counts, require_type


class Piece(NamedTuple):
    """Tokens ``start <= t < end`` of one document on one rank."""

    document: int
    start: int
    end: int


@dataclass(frozen=True)
class Layout:
    """Where documents and ranks cut a sequence; every rank knows all of it.

    Args:
        document_lens: tokens of each document, in order.
        rank_lens: tokens of each rank, in order; a rank may be empty.

    Raises:
        K3Error: a document is empty, a rank is negative, or the two do not add up to the same.
    """

    document_lens: tuple[int, ...]
    rank_lens: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, least in (("document_lens", 1), ("rank_lens", 0)):
            object.__setattr__(self, name, require_counts(name, getattr(self, name), least))
        require(bool(self.document_lens), "document_lens=() must name at least one document")
        require(
            sum(self.document_lens) == sum(self.rank_lens),
            f"document_lens={self.document_lens} and rank_lens={self.rank_lens} must cover the "
            "same number of tokens",
        )

    @property
    def document_bounds(self) -> tuple[tuple[int, int], ...]:
        return _bounds(self.document_lens)

    @property
    def rank_bounds(self) -> tuple[tuple[int, int], ...]:
        return _bounds(self.rank_lens)

    def pieces(self, rank: int) -> list[Piece]:
        """What `rank` holds of each document, in order; empty for an empty rank."""
        require_count("rank", rank, 0, len(self.rank_lens) - 1)
        start, end = self.rank_bounds[rank]
        return [
            Piece(document, max(first, start), min(last, end))
            for document, (first, last) in enumerate(self.document_bounds)
            if max(first, start) < min(last, end)
        ]

    def starts_document(self, piece: Piece) -> bool:
        self._require_piece(piece)
        return piece.start == self.document_bounds[piece.document][0]

    def ends_document(self, piece: Piece) -> bool:
        self._require_piece(piece)
        return piece.end == self.document_bounds[piece.document][1]

    def starts_afresh(self, piece: Piece) -> bool:
        """True if no state precedes the piece; the first document may continue an older state."""
        return self.starts_document(piece) and piece.document > 0

    def tail(self, rank: int) -> slice:
        """Tokens of the last document on `rank`: all that a later rank can continue from."""
        pieces = self.pieces(rank)
        start, end = self.rank_bounds[rank]
        return slice(pieces[-1].start if pieces else start, end)

    def forgets(self, rank: int) -> bool:
        """True if nothing from before `rank` passes through it."""
        pieces = self.pieces(rank)
        return bool(pieces) and self.starts_afresh(pieces[-1])

    def senders(self, rank: int, reach: int | None = None) -> tuple[int, ...]:
        """Earlier ranks that hold tokens of the document that `rank` continues.

        Args:
            rank: the receiver.
            reach: count only ranks with one of the last `reach` tokens before it; None counts all.
        """
        if reach is not None:
            require_count("reach", reach)
        pieces = self.pieces(rank)
        if not pieces or self.starts_document(pieces[0]):
            return ()
        first, here = self.document_bounds[pieces[0].document][0], pieces[0].start
        oldest = first if reach is None else max(first, here - reach)
        return tuple(
            sender
            for sender, (start, end) in enumerate(self.rank_bounds[:rank])
            if max(start, oldest) < end
        )

    def _require_piece(self, piece: Piece) -> None:
        require_type("piece", piece, Piece)
        require_count("piece.document", piece.document, 0, len(self.document_lens) - 1)


def _bounds(lens: Sequence[int]) -> tuple[tuple[int, int], ...]:
    ends = list(accumulate(lens))
    return tuple(zip([0, *ends], ends, strict=False))
