"""Checks of context parallelism (page 6)."""

from __future__ import annotations

from typing import Any

from k3core.studies.oracle import oracle_convolution, oracle_recurrent
from k3core.studies.verification.check import (
    ACCOUNTING,
    ORACLE,
    SELF,
    Case,
    Reading,
    check,
    difference,
)
from k3core.studies.verification.inputs import (
    BATCH,
    DK,
    DV,
    HEADS,
    committed_state,
    conv_rows,
    conv_weight,
    sequences,
)

PAGE = "parallel"
FP64, FP32 = 1e-12, 1e-5
NUM_TOKENS, WORLD = 13, 3
DOCUMENTS = (6, 7)


def _prefill(case: Case) -> Any:
    """Two documents over three ranks; the first continues an older state."""
    return case.subject.parallel.KDAContextParallel(WORLD).prefill(
        *sequences(NUM_TOKENS, case.seed, case.correlated, case.torch_dtype),
        committed_state(case.seed, case.torch_dtype),
        document_lens=DOCUMENTS,
    )


@check(PAGE, SELF, FP64, FP32, in_matrix=True)
def ranks_match_recurrence(case: Case) -> float:
    inputs = sequences(NUM_TOKENS, case.seed, case.correlated, case.torch_dtype)
    state = committed_state(case.seed, case.torch_dtype)
    recurrent, result = case.subject.kda.kda_recurrent, case.once(_prefill)
    cut = DOCUMENTS[0]
    first_out, first = recurrent(*inputs.head(cut), state)
    second_out, second = recurrent(*(x[:, :, cut:] for x in inputs))
    return max(
        difference(result.outputs[:, :, :cut], first_out),
        difference(result.outputs[:, :, cut:], second_out),
        difference(result.document_states[0], first),
        difference(result.document_states[1], second),
    )


@check(PAGE, ORACLE, FP64, FP32, in_matrix=True)
def ranks_match_oracle(case: Case) -> float:
    inputs = sequences(NUM_TOKENS, case.seed, case.correlated, case.torch_dtype)
    state = committed_state(case.seed, case.torch_dtype)
    result, cut = case.once(_prefill), DOCUMENTS[0]
    first_out, first = oracle_recurrent(*inputs.head(cut), state=state)
    second_out, second = oracle_recurrent(*(x[:, :, cut:] for x in inputs))
    return max(
        difference(result.outputs[:, :, :cut], first_out),
        difference(result.outputs[:, :, cut:], second_out),
        difference(result.document_states[0], first),
        difference(result.document_states[1], second),
    )


@check(PAGE, ORACLE, FP64, FP32)
def conv_halo_matches_oracle(case: Case) -> float:
    rows = conv_rows(NUM_TOKENS, case.seed, case.torch_dtype)
    weight = conv_weight(case.seed, case.torch_dtype)
    ranks = case.subject.parallel.KDAContextParallel(WORLD)
    result = ranks.short_convolution(rows, weight, rank_lens=(2, 1, 10))
    return difference(result.outputs, oracle_convolution(rows, weight))


@check(PAGE, ACCOUNTING)
def message_bytes_do_not_grow(case: Case) -> Reading:
    """Bytes of the real messages at 13 and at 52 tokens against the sizes of state and map."""
    expected = BATCH * HEADS * DK * (DK + DV) * case.torch_dtype.itemsize
    sent = []
    for num_tokens in (NUM_TOKENS, 4 * NUM_TOKENS):
        inputs = sequences(num_tokens, case.seed, case.correlated, case.torch_dtype)
        result = case.subject.parallel.KDAContextParallel(WORLD).prefill(*inputs)
        sent += [rank.sent_bytes for rank in result.traffic]
    worst = max(sent, key=lambda num_bytes: abs(num_bytes - expected))
    return Reading(float(abs(worst - expected)), float(worst), float(expected))


CHECKS = (
    ranks_match_recurrence,
    ranks_match_oracle,
    conv_halo_matches_oracle,
    message_bytes_do_not_grow,
)
