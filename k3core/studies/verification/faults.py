"""Faults to switch on: each replaces or wraps one step in a private copy of the mechanisms.

Every one of them has been written by somebody: the sources are in the docstrings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from k3core.errors import require
from k3core.studies.verification.subject import Subject, private_subject, real_subject

HEALTHY = "healthy"


def undecayed_delta(subject: Subject) -> None:
    """The delta is taken on the state before its decay (source text 1.3)."""

    def advance_state(
        state: Tensor,
        decay: Tensor,
        key: Tensor,
        query: Tensor,
        write_key: Tensor,
        write_value: Tensor,
        *,
        new_state: Tensor | None = None,
        update: Tensor | None = None,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        update = torch.baddbmm(write_value, write_key, state.to(decay.dtype), alpha=-1, out=update)
        new_state = torch.addcmul(state * decay, key, update, out=new_state)
        return torch.bmm(query, new_state, out=out), new_state

    subject.kda.advance_state = advance_state


def gate_multiplier(subject: Subject) -> None:
    """The log-decay itself multiplies the state, without the exponential (source text 1.3)."""
    real = subject.kda.advance_state

    def advance_state(
        state: Tensor, decay: Tensor, *rest: Tensor, **room: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        out, new_state = real(state, decay.log(), *rest, **room)
        return out, new_state

    subject.kda.advance_state = advance_state


def beta_bf16_replay(subject: Subject) -> None:
    """The state is replayed with beta in bf16, the outputs were made with the full one
    (SGLang #38975, vLLM #53877)."""
    real = subject.decode.verify_and_replay

    def verify_and_replay(state: Any, projections: Any, num_accepted: int) -> tuple[Any, Tensor]:
        _, outputs = real(state, projections, num_accepted)
        tensors = projections.tensors()
        tensors["beta"] = _through_bf16(tensors["beta"])
        new_state, _ = real(state, type(projections)(**tensors), num_accepted)
        return new_state, outputs

    subject.decode.verify_and_replay = verify_and_replay


def state_bf16_commit(subject: Subject) -> None:
    """The state passes through bf16 whenever it is committed (vLLM #55364 offers that)."""
    real = subject.decode.verify_and_replay

    def verify_and_replay(state: Any, projections: Any, num_accepted: int) -> tuple[Any, Tensor]:
        new_state, outputs = real(state, projections, num_accepted)
        if isinstance(new_state, Tensor):
            return _through_bf16(new_state), outputs
        return new_state._replace(recurrent=_through_bf16(new_state.recurrent)), outputs

    subject.decode.verify_and_replay = verify_and_replay


def commit_off_by_one(subject: Subject) -> None:
    """The first rejected token is committed too (compare vLLM #52942)."""
    real = subject.decode.verify_and_replay

    def verify_and_replay(state: Any, projections: Any, num_accepted: int) -> tuple[Any, Tensor]:
        new_state, outputs = real(state, projections, min(num_accepted + 1, len(projections)))
        return new_state, outputs[:, :, :num_accepted]

    subject.decode.verify_and_replay = verify_and_replay


def conv_not_rolled_back(subject: Subject) -> None:
    """The convolution window keeps the inputs of the whole verify window."""
    real = subject.decode.advance_window

    def advance_window(
        window: Tensor | None, conv_inputs: Tensor | None, num_accepted: int
    ) -> Tensor | None:
        num_rows = num_accepted if conv_inputs is None else len(conv_inputs)
        result: Tensor | None = real(window, conv_inputs, num_rows)
        return result

    subject.decode.advance_window = advance_window


def verify_writes_state(subject: Subject) -> None:
    """Verification leaves its result in the committed state (SGLang #29472)."""
    real = subject.decode.verify_and_replay

    def verify_and_replay(state: Any, projections: Any, num_accepted: int) -> tuple[Any, Tensor]:
        new_state, outputs = real(state, projections, num_accepted)
        after_all, _ = real(state, projections, len(projections))
        pairs = (
            [(state, after_all)]
            if isinstance(state, Tensor)
            else zip(state, after_all, strict=True)
        )
        for committed, written in pairs:
            if committed is not None:
                committed.copy_(written)
        return new_state, outputs

    subject.decode.verify_and_replay = verify_and_replay


def _through_bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


_INJECT: dict[str, Callable[[Subject], None]] = {
    fault.__name__: fault
    for fault in (
        undecayed_delta,
        gate_multiplier,
        beta_bf16_replay,
        state_bf16_commit,
        commit_off_by_one,
        conv_not_rolled_back,
        verify_writes_state,
    )
}

FAULTS = tuple(_INJECT)
"""Codes of the faults."""

FAULT_CODES = (HEALTHY, *FAULTS)
"""The columns of the matrix."""


@lru_cache(maxsize=len(FAULT_CODES))
def subject_with(fault: str) -> Subject:
    """The real mechanisms for ``healthy``, else a private copy with that fault.

    Raises:
        K3Error: unknown fault.
    """
    require(fault in FAULT_CODES, f"fault={fault!r} is unknown; allowed: {', '.join(FAULT_CODES)}")
    if fault == HEALTHY:
        return real_subject()
    subject = private_subject()
    _INJECT[fault](subject)
    return subject
