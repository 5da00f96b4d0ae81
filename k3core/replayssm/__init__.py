"""Rings for speculative decoding: one keeps results, the others keep causes.

* `ReplaySSM` keeps snapshots of whole states, oldest out first.
* `RawInputRing` keeps the raw inputs of draft tokens as they arrive; a commit replays the accepted
  ones into the state (SGLang ReplaySSM, fold at every commit).
* `FlushRing` keeps accepted inputs too and folds them into the state only when the window is
  nearly full (FlashInfer #4864, deferred flush).

All replay goes through `k3core.decode.verify_and_replay`, so results are bit-equal to the plain
recurrence. Whatever a ring takes in it copies; whatever it hands out shares no memory with it.
"""

from k3core.replayssm.flush_ring import FlushRing, VerifyStep
from k3core.replayssm.raw_inputs import RawInputRing
from k3core.replayssm.snapshots import ReplaySSM

__all__ = ["FlushRing", "RawInputRing", "ReplaySSM", "VerifyStep"]
