"""The ring of raw inputs: when it overwrites, what its window is, whether its commit is exact."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch

from k3core.decode import DraftProjections, snapshot_cost_ratio, verify_and_replay
from k3core.errors import require_count
from k3core.kda import KDAState, kda_recurrent
from k3core.replayssm import RawInputRing, ReplaySSM
from k3core.studies.oracle import Array, oracle_recurrent
from k3core.studies.replayssm.tokens import CONV_WIDTH, toy_tokens, zero_state

LAYOUT_HEADS, LAYOUT_SIZE = 2, 3
SWEEP_DRAFTS = (1, 2, 4, 8, 16)
ORACLE_HEADS = 2
"""Heads compared with the oracle, which is slow; heads do not depend on each other."""


@dataclass(frozen=True)
class RawInputStudy:
    """Tables:
    timing: one row per push: inputs in the window and inputs lost so far.
    layout: ``window().q`` of a ring fed with tagged inputs, input i filled with the number i.
    shapes: shape, dtype and bytes of each tensor of the window.
    replay: one row per route and accepted count: elements that differ, largest difference.
    ring_bytes: bytes held by real rings of n inputs and of n snapshots.
    """

    tables: dict[str, pd.DataFrame]
    num_held: int
    num_lost: int
    elements_different: int
    oracle_error: float
    element_ratio: float
    byte_ratio: float
    input_bytes: int
    snapshot_bytes: int


def raw_inputs(
    capacity: int = 4,
    num_pushes: int = 11,
    heads: int = 2,
    dk: int = 16,
    dv: int = 16,
    input_dtype: str = "bfloat16",
    state_dtype: str = "float32",
    seed: int = 0,
) -> RawInputStudy:
    """Stream inputs into a ring and compare its commits with a batch, the recurrence, the oracle.

    Args:
        capacity: inputs the ring holds.
        num_pushes: inputs pushed; the oldest are lost beyond `capacity`.
        heads, dk, dv, input_dtype, state_dtype, seed: the toy tensors.
    """
    require_count("capacity", capacity, least=1)
    require_count("num_pushes", num_pushes, least=1)
    tokens = toy_tokens(num_pushes, heads, dk, dv, input_dtype, seed)
    ring, timing = RawInputRing(capacity), []
    for i in range(num_pushes):
        was_full = ring.is_full
        push(ring, tokens, i)
        status = "overwriting" if was_full else "full" if ring.is_full else "filling"
        timing.append((i, len(ring), ring.num_overwritten, status, ring.nbytes))
    replay = _replay_table(ring, tokens, zero_state(heads, dk, dv, state_dtype))
    ring_bytes = _byte_table(tokens, zero_state(heads, dk, dv, state_dtype))
    per_input, per_snapshot = (
        int(
            ring_bytes.loc[
                (ring_bytes["draft_len"] == 1) & (ring_bytes["kind"] == kind), "bytes"
            ].iloc[0]
        )
        for kind in ("inputs", "snapshots")
    )
    exact = replay["route"] != "oracle"
    return RawInputStudy(
        tables={
            "timing": pd.DataFrame(timing, columns=["push", "held", "lost", "status", "bytes"]),
            "layout": _layout_table(capacity, num_pushes),
            "shapes": _shape_table(ring.window()),
            "replay": replay,
            "ring_bytes": ring_bytes,
        },
        num_held=len(ring),
        num_lost=ring.num_overwritten,
        elements_different=int(replay.loc[exact, "elements_different"].sum()),
        oracle_error=float(replay.loc[~exact, "error"].max()),
        element_ratio=snapshot_cost_ratio(heads, dk, dv),
        byte_ratio=per_snapshot / per_input,
        input_bytes=per_input,
        snapshot_bytes=per_snapshot,
    )


def push(ring: RawInputRing, tokens: DraftProjections, index: int, with_conv: bool = True) -> None:
    """Push one token of `tokens`."""
    t, i = tokens, index
    conv = t.conv_inputs[i] if with_conv and t.conv_inputs is not None else None
    ring.push(t.q[i], t.k[i], t.v[i], t.g[i], t.beta[i], conv)


def _replay_table(
    ring: RawInputRing, tokens: DraftProjections, empty: torch.Tensor
) -> pd.DataFrame:
    """Commit 0, 1, ... inputs of the window on the state right before it."""
    first = len(tokens) - len(ring)
    window = tokens[first:]
    zeros = torch.zeros(1, CONV_WIDTH - 1, tokens.conv_channels, dtype=tokens.q.dtype)
    before, _ = verify_and_replay(KDAState(empty, zeros), tokens, first)
    conv_rows = torch.cat([*_tensors(before)[1:], *_conv_rows(window)], dim=1)
    expected, oracle_state = before.recurrent, before.recurrent[:, :ORACLE_HEADS].double().numpy()
    rows = []
    for accepted in range(len(ring) + 1):
        if accepted:
            q, k, v, g, beta = window[accepted - 1 : accepted].sequences()
            _, expected = kda_recurrent(q, k, v, g, beta, expected)
            _, oracle_state = oracle_recurrent(*_exact(q, k, v, g, beta), oracle_state)
        expected_conv = conv_rows[:, accepted : accepted + CONV_WIDTH - 1]
        batch, _ = verify_and_replay(before, window, accepted)
        reader = RawInputRing(ring.capacity)
        reader.copy_from(ring)
        streamed, conv_window = _tensors(reader.commit(before, accepted))
        for route, given, wanted in (
            ("batch", batch.recurrent, expected),
            ("stream", streamed, expected),
            ("conv_window", conv_window, expected_conv),
            ("oracle", streamed[:, :ORACLE_HEADS].double(), torch.from_numpy(oracle_state)),
        ):
            difference = (given - wanted).abs()
            rows.append((route, accepted, int((difference != 0).sum()), float(difference.max())))
    return pd.DataFrame(rows, columns=["route", "accepted", "elements_different", "error"])


def _exact(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[Array, Array, Array, Array, Array]:
    """The first heads as float64 arrays."""

    def array(x: torch.Tensor) -> Array:
        wide: Array = x[:, :ORACLE_HEADS].double().numpy()
        return wide

    return array(q), array(k), array(v), array(g), array(beta)


def _conv_rows(projections: DraftProjections) -> list[torch.Tensor]:
    """The raw convolution inputs as one (B, T, C) tensor, or nothing."""
    conv = projections.conv_inputs
    return [] if conv is None else [conv.transpose(0, 1)]


def _tensors(state: KDAState) -> list[torch.Tensor]:
    """The tensors of a state that has a convolution window."""
    return [x for x in state if x is not None]


def _layout_table(capacity: int, num_pushes: int) -> pd.DataFrame:
    """One row per cell of ``window().q``: (draft, head, channel) and its value."""
    ring = RawInputRing(capacity)
    for i in range(num_pushes):
        vector = torch.full((1, LAYOUT_HEADS, LAYOUT_SIZE), float(i))
        ring.push(vector, vector, vector, vector, vector[..., 0])
    q = ring.window().q
    rows = [
        (draft, head, channel, head * LAYOUT_SIZE + channel, float(q[draft, 0, head, channel]))
        for draft in range(q.shape[0])
        for head in range(q.shape[2])
        for channel in range(q.shape[3])
    ]
    return pd.DataFrame(rows, columns=["draft", "head", "channel", "column", "value"])


def _shape_table(window: DraftProjections) -> pd.DataFrame:
    rows = [
        (name, " × ".join(map(str, x.shape)), str(x.dtype).removeprefix("torch."), x.nbytes)
        for name, x in window.tensors().items()
    ]
    return pd.DataFrame(rows, columns=["tensor", "shape", "dtype", "bytes"])


def _byte_table(tokens: DraftProjections, state: torch.Tensor) -> pd.DataFrame:
    """Bytes of real rings, without the convolution on either side."""
    rows = []
    for draft_len in SWEEP_DRAFTS:
        inputs, states = RawInputRing(draft_len), ReplaySSM[torch.Tensor](draft_len)
        for i in range(draft_len):
            push(inputs, tokens, i % len(tokens), with_conv=False)
            states.push(state)
        rows += [
            (draft_len, "inputs", inputs.nbytes),
            (draft_len, "snapshots", states.nbytes),
        ]
    return pd.DataFrame(rows, columns=["draft_len", "kind", "bytes"])
