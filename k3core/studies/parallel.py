"""Studies of context parallelism: what ranks send in production, and a real exchange in small."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import get_preset
from k3core.errors import require_count
from k3core.kda import kda_gate, kda_recurrent, normalize_qk
from k3core.parallel import (
    AffineMap,
    KDAContextParallel,
    Layout,
    all_gather_seconds,
    scan_chain,
    scan_tree,
    transition_and_offset,
)
from k3core.studies import single_thread  # noqa: F401
from k3core.units import bytes_text, count_text

TOLERANCE = 1e-12
SWEEP_TOKENS = tuple(2**i for i in range(6, 21))
SWEEP_RANKS = tuple(range(1, 17))
MEASURED_LENS = (8, 16, 32, 64)
CHAIN_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class ExchangeStudy:
    """What each rank sends for one layer at production sizes; bytes per rank of one sequence.

    Tables:
        ruler: one row per rank: its tokens.
        cuts: one row per border between documents.
        squares: one row per rank and kind (``kda`` message, ``mla`` rows): bytes sent.
        sweep: bytes sent per layer against tokens per rank.
        marks: where both send the same (``equal``) and where this run stands (``you``).
        time_by_len: seconds of one all-gather against tokens per rank.
        time_by_ranks: the same against ranks, at this length.
        by_length: MLA cache of one layer and KDA message against the whole length.
        pairs: one row per receiver and sender: what the receiver does with that message.
    """

    tables: dict[str, pd.DataFrame]
    num_heads: int
    dk: int
    dv: int
    message_bytes: int
    row_bytes: int
    row_dtype: str
    tokens_per_rank: int
    rows_sent_bytes: int
    halo_bytes: int
    kda_seconds: float
    mla_seconds: float
    num_used: int
    num_gathered: int
    num_kda_layers: int
    num_mla_layers: int

    @property
    def equal_tokens_of_model(self) -> float:
        """The same over all KDA layers (messages) and all MLA layers (rows)."""
        return self.equal_tokens * self.num_kda_layers / self.num_mla_layers

    @property
    def equal_tokens(self) -> float:
        """Tokens per rank at which message and rows weigh the same (for two ranks or more)."""
        return self.one_message_bytes / self.row_bytes

    @property
    def one_message_bytes(self) -> int:
        """The message of a rank that is not alone."""
        return KDAContextParallel.communication_volume(1, self.num_heads, self.dk, self.dv, 2)


def document_lens(num_tokens: int, num_documents: int, seed: int) -> tuple[int, ...]:
    """Documents of uneven lengths that fill `num_tokens`; the same shares for every length."""
    require_count("num_documents", num_documents, 1, require_count("num_tokens", num_tokens, 1))
    shares = np.random.default_rng(seed).uniform(0.5, 1.5, num_documents).cumsum()
    ends = np.round(shares / shares[-1] * num_tokens).astype(int)
    return tuple(int(length) for length in np.diff(ends, prepend=0))


def exchange(
    model: str = "kimi-k3",
    tp: int = 8,
    row_dtype: str = "bfloat16",
    num_tokens: int = 65_536,
    ranks: int = 4,
    documents: int = 1,
    bandwidth_gb: float = 50.0,
    latency_us: float = 10.0,
    seed: int = 0,
) -> ExchangeStudy:
    """Bytes and time of one layer's exchange; times are derived from bandwidth and latency.

    Args:
        model, tp: preset and tensor-parallel degree; they set the heads on a rank.
        row_dtype: format in which MLA rows travel.
        num_tokens: length of the sequence, all documents together.
        ranks: context-parallel ranks.
        documents: documents packed into the sequence.
        bandwidth_gb: 10^9 bytes per second into one rank.
        latency_us: microseconds of one hop.
    """
    memory = RequestMemory(get_preset(model), tp, mla_dtype=row_dtype)
    parallel = KDAContextParallel(ranks)
    layout = parallel.layout(num_tokens, document_lens(num_tokens, documents, seed))
    preset, heads, row_bytes = memory.model, memory.num_heads, memory.mla_bytes_per_token_layer
    message = parallel.communication_volume(1, heads, preset.dk, preset.dv, ranks)
    pair_message = parallel.communication_volume(1, heads, preset.dk, preset.dv, 2)
    tokens_per_rank = max(layout.rank_lens)
    rows_sent = tokens_per_rank * row_bytes if ranks > 1 else 0

    def seconds(num_bytes: int, world: int) -> float:
        return all_gather_seconds(num_bytes, world, bandwidth_gb * 1e9, latency_us * 1e-6)

    sweep = [
        row
        for tokens in SWEEP_TOKENS
        for row in ((tokens, "kda", pair_message), (tokens, "mla", tokens * row_bytes))
    ]
    by_ranks = [
        row
        for world in SWEEP_RANKS
        for row in (
            (world, "kda", seconds(pair_message, world)),
            (world, "mla", seconds(-(-num_tokens // world) * row_bytes, world)),
        )
    ]
    equal = pair_message / row_bytes
    tables = {
        "ruler": _ruler(layout),
        "cuts": pd.DataFrame({"position": [end for _, end in layout.document_bounds[:-1]]}),
        "squares": _squares(layout, message, row_bytes),
        "sweep": pd.DataFrame(sweep, columns=["tokens", "kind", "bytes"]),
        "marks": pd.DataFrame(
            [("equal", equal, count_text(equal)), ("you", tokens_per_rank, "")],
            columns=["mark", "tokens", "number"],
        ),
        "time_by_len": pd.DataFrame(
            [(tokens, kind, seconds(sent, ranks)) for tokens, kind, sent in sweep],
            columns=["tokens", "kind", "seconds"],
        ),
        "time_by_ranks": pd.DataFrame(by_ranks, columns=["ranks", "kind", "seconds"]),
        "by_length": pd.DataFrame(
            [
                row
                for length in SWEEP_TOKENS
                for row in ((length, "mla", length * row_bytes), (length, "kda", message))
            ],
            columns=["num_tokens", "kind", "bytes"],
        ),
        "pairs": _pairs(layout),
    }
    return ExchangeStudy(
        tables=tables,
        num_heads=heads,
        dk=preset.dk,
        dv=preset.dv,
        message_bytes=message,
        row_bytes=row_bytes,
        row_dtype=row_dtype,
        tokens_per_rank=tokens_per_rank,
        rows_sent_bytes=rows_sent,
        halo_bytes=memory.conv_bytes_per_layer if ranks > 1 else 0,
        kda_seconds=seconds(message, ranks),
        mla_seconds=seconds(rows_sent, ranks),
        num_used=int((tables["pairs"]["status"] == "used").sum()),
        num_gathered=ranks * (ranks - 1),
        num_kda_layers=preset.num_kda_layers,
        num_mla_layers=preset.num_mla_layers,
    )


def _ruler(layout: Layout) -> pd.DataFrame:
    rows = [(rank, start, end) for rank, (start, end) in enumerate(layout.rank_bounds)]
    table = pd.DataFrame(rows, columns=["rank", "start", "end"])
    return table.assign(num_tokens=table["end"] - table["start"])


def _squares(layout: Layout, message_bytes: int, row_bytes: int) -> pd.DataFrame:
    alone, rows = len(layout.rank_lens) == 1, []
    for rank, (start, end) in enumerate(layout.rank_bounds):
        rows_sent = 0 if alone else (end - start) * row_bytes
        for kind, sent in (("kda", message_bytes), ("mla", rows_sent)):
            rows.append((rank, kind, (start + end) / 2, sent, bytes_text(sent)))
    return pd.DataFrame(rows, columns=["rank", "kind", "center", "bytes", "text"])


def _pairs(layout: Layout) -> pd.DataFrame:
    world = range(len(layout.rank_lens))
    rows = []
    for receiver in world:
        used = layout.senders(receiver)
        for sender in world:
            if sender == receiver:
                status = "own"
            elif sender in used:
                status = "used"
            else:
                status = "other_document" if sender < receiver else "later"
            rows.append((sender, receiver, status))
    return pd.DataFrame(rows, columns=["sender", "receiver", "status"])


@dataclass(frozen=True)
class MergeStudy:
    """A real exchange between ranks on toy tensors, held against one rank.

    Tables:
        traffic: one row per rank: tokens, bytes of the tensors really sent and received.
        error_by_rank: relative error of the state from which each rank starts, by the format in
            which the maps are chained.
        depth: dependent merges against ranks, by scan.
        measured: bytes really sent by one rank against the toy length, and the formula.
    """

    tables: dict[str, pd.DataFrame]
    output_error: float
    state_error: float
    scan_gap: float
    sent_bytes: int
    formula_bytes: int
    halo_bytes: int


def merge_check(
    ranks: int = 4,
    documents: int = 1,
    heads: int = 2,
    dk: int = 16,
    dv: int = 16,
    toy_len: int = 64,
    seed: int = 0,
) -> MergeStudy:
    """Run the prefill of one toy layer on `ranks` ranks and on one; fp64, correlated keys."""
    for name, value in {"ranks": ranks, "heads": heads, "dk": dk, "dv": dv}.items():
        require_count(name, value, 1)
    lens = document_lens(toy_len, documents, seed)
    inputs = toy_sequence(heads, dk, dv, toy_len, seed)
    chain = KDAContextParallel(ranks)
    result = chain.prefill(*inputs, document_lens=lens)
    tree = KDAContextParallel(ranks, "tree").prefill(*inputs, document_lens=lens)
    outputs, states = _one_rank(inputs, lens)
    layout = chain.layout(toy_len, lens)
    convolution = chain.short_convolution(
        torch.zeros(1, toy_len, heads * (2 * dk + dv), dtype=torch.float64),
        torch.zeros(heads * (2 * dk + dv), 4, dtype=torch.float64),
        document_lens=lens,
    )
    halos = [traffic.sent_bytes for traffic in convolution.traffic]
    sent = result.traffic[0].sent_bytes
    formula = chain.communication_volume(1, heads, dk, dv, ranks, itemsize=8)
    traffic = pd.DataFrame(
        [
            (t.rank, t.num_tokens, t.sent_bytes, t.received_bytes, len(t.used_senders), halo)
            for t, halo in zip(result.traffic, halos, strict=True)
        ],
        columns=["rank", "num_tokens", "sent_bytes", "received_bytes", "num_used", "halo_bytes"],
    )
    tables = {
        "traffic": traffic,
        "error_by_rank": _error_by_rank(inputs, layout, result.initial_states),
        "depth": _depth(),
        "measured": _measured(chain, inputs, formula),
    }
    return MergeStudy(
        tables=tables,
        output_error=_gap(result.outputs, outputs),
        state_error=max(_gap(a, b) for a, b in zip(result.document_states, states, strict=True)),
        scan_gap=_gap(result.outputs, tree.outputs),
        sent_bytes=sent,
        formula_bytes=formula,
        halo_bytes=max(halos),
    )


def toy_sequence(
    heads: int, dk: int, dv: int, num_tokens: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(q, k, v, g, beta) of one toy layer, fp64, with a slow decay and keys close to one another.

    With a fast decay the transition between ranks is almost zero, and a wrong merge is invisible.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    keys = normal(1, heads, 1, dk) + 0.4 * normal(1, heads, num_tokens, dk)
    q, k = normalize_qk(normal(1, heads, num_tokens, dk), keys)
    g = kda_gate(normal(1, heads, num_tokens, dk) - 5.0)
    beta = torch.sigmoid(normal(1, heads, num_tokens))
    return q, k, normal(1, heads, num_tokens, dv), g, beta


def _one_rank(inputs: Iterable[Tensor], lens: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
    """Each document by the plain recurrence."""
    pieces = zip(*(x.split(lens, dim=2) for x in inputs), strict=True)
    runs = [kda_recurrent(*piece) for piece in pieces]
    return torch.cat([out for out, _ in runs], dim=2), [state for _, state in runs]


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _error_by_rank(
    inputs: tuple[Tensor, ...], layout: Layout, exact: tuple[Tensor, ...]
) -> pd.DataFrame:
    """Chain the maps in each format; messages and running state are rounded to it."""
    rows = []
    for name, dtype in CHAIN_DTYPES.items():
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        _, k, v, g, beta = (x.to(wide) for x in inputs)
        dk = k.shape[-1]
        state = torch.zeros_like(exact[0], dtype=dtype)
        for rank, truth in enumerate(exact):
            pieces = layout.pieces(rank)
            fresh = bool(pieces) and layout.starts_afresh(pieces[0])
            start = torch.zeros_like(state) if fresh else state
            scale = float(truth.abs().max())
            error = _gap(start.double(), truth) / scale if scale else _gap(start.double(), truth)
            rows.append((rank, name, error))
            at = layout.tail(rank)
            packed = transition_and_offset(k[:, :, at], v[:, :, at], g[:, :, at], beta[:, :, at])
            transition, offset = packed.to(dtype).split([dk, v.shape[-1]], dim=-1)
            stretch = AffineMap(None if layout.forgets(rank) else transition, offset)
            state = scan_chain([stretch], state)[0][-1]
    return pd.DataFrame(rows, columns=["rank", "chain_dtype", "error"])


def _depth() -> pd.DataFrame:
    """Scan real (1 x 1) maps and count the dependent steps."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    rows = []
    for world in SWEEP_RANKS:
        maps = [AffineMap(one, one)] * (world - 1)
        rows.append((world, "chain", scan_chain(maps, one)[1]))
        rows.append((world, "tree", scan_tree(maps, one)[1]))
    return pd.DataFrame(rows, columns=["ranks", "scan", "merges"])


def _measured(
    parallel: KDAContextParallel, inputs: tuple[Tensor, ...], formula: int
) -> pd.DataFrame:
    rows = []
    for length in MEASURED_LENS:
        repeats = -(-length // inputs[0].shape[2])
        part = [torch.cat([x] * repeats, dim=2)[:, :, :length] for x in inputs]
        sent = parallel.prefill(*part).traffic[0].sent_bytes
        rows.append((length, sent, formula))
    return pd.DataFrame(rows, columns=["num_tokens", "sent_bytes", "formula_bytes"])
