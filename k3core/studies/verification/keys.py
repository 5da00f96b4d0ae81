"""How alike the keys must be before a wrong recurrence shows."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch

from k3core.errors import require_count
from k3core.studies.verification.check import difference
from k3core.studies.verification.faults import HEALTHY
from k3core.studies.verification.inputs import sequences
from k3core.studies.verification.run import case_of

KEY_MIX = tuple(step / 10 for step in range(11))


@dataclass(frozen=True)
class KeySweep:
    """Error of the undecayed delta against how alike the keys are.

    Tables:
        keys: ``cosine`` (mean cosine of two neighbouring keys, measured), ``error`` (outputs,
            relative norm against the real recurrence).
    """

    tables: dict[str, pd.DataFrame]

    @property
    def error_random(self) -> float:
        return float(self.tables["keys"]["error"].iloc[0])

    @property
    def error_repeated(self) -> float:
        return float(self.tables["keys"]["error"].iloc[-1])


def key_sweep(seed: int = 0, num_tokens: int = 17) -> KeySweep:
    """Run the faulty recurrence on keys from independent to one key repeated, K = 128, fp64.

    Raises:
        K3Error: a negative seed, or fewer than two tokens.
    """
    require_count("num_tokens", num_tokens, least=2)
    real, faulty = (
        case_of(fault, seed, True, "float64").subject.kda for fault in (HEALTHY, "undecayed_delta")
    )
    rows = []
    for mix in KEY_MIX:
        inputs = sequences(num_tokens, seed, mix, torch.float64, num_heads=1, dk=128)
        cosine = float((inputs.k[:, :, 1:] * inputs.k[:, :, :-1]).sum(-1).mean())
        expected, _ = real.kda_recurrent(*inputs)
        rows.append((cosine, difference(faulty.kda_recurrent(*inputs)[0], expected)))
    return KeySweep({"keys": pd.DataFrame(rows, columns=["cosine", "error"])})
