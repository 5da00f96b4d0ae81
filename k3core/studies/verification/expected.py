"""The faults that each row of the matrix must catch; to all others it is blind, by declaration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from k3core.studies.verification.faults import FAULTS

_RECURRENCE = frozenset({"undecayed_delta", "gate_multiplier"})
_ROUNDING = frozenset({"beta_bf16_replay", "state_bf16_commit"})
_OFF, _CONV, _WRITES = (
    frozenset({code})
    for code in ("commit_off_by_one", "conv_not_rolled_back", "verify_writes_state")
)
_NONE: frozenset[str] = frozenset()

EXPECTED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "recurrence_matches_oracle_random_keys": _RECURRENCE,
        "recurrence_matches_oracle_correlated_keys": _RECURRENCE,
        "chunk_matches_recurrence": _RECURRENCE,
        "test_verify_replay_partial_matches_full_recurrence": _ROUNDING | _OFF,
        # All drafts accepted: there is no token beyond the last one to commit by mistake.
        "test_verify_replay_accept_all_matches_full": _ROUNDING,
        "test_verify_replay_reject_zero_is_identity": frozenset({"state_bf16_commit"}) | _OFF,
        "replay_matches_oracle": _RECURRENCE | _ROUNDING | _OFF,
        "verify_leaves_committed_state": _WRITES,
        "conv_window_matches_last_inputs": _CONV | _OFF,
        "decode_loop_matches_oracle": frozenset(FAULTS),
        # Both sides run the same replay.
        "ring_commit_equals_replay": _NONE,
        "ring_commit_matches_oracle": _RECURRENCE | _ROUNDING | _OFF | _CONV,
        # A fold replays its whole history, and this ring holds no convolution window.
        "deferred_flush_matches_oracle": _RECURRENCE | _ROUNDING | _WRITES,
        # Both runs make the same mistakes at the same tokens.
        "hit_equals_miss": _NONE,
        "drafts_change_nothing": _ROUNDING | _OFF | _CONV | _WRITES,
        "engine_matches_oracle": frozenset(FAULTS),
        "ranks_match_recurrence": _RECURRENCE,
        "ranks_match_oracle": _RECURRENCE,
    }
)
