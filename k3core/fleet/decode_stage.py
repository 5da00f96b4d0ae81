"""The optional decode stage of a cluster: a budget of tokens held, and a time per token.

After its first token a request holds its prompt and its answer to be (``input_len + output_len``
tokens) against the cluster's budget until the answer is complete. Those that do not fit wait,
first in, first out; prefill goes on meanwhile. Without a decode stage a request is complete with
its first token.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3core.errors import require_count, require_number


@dataclass(frozen=True)
class DecodeStage:
    """Decode as a declared model.

    Attributes:
        token_budget: tokens of context that a cluster can hold in decode.
        seconds_per_token: of each generated token, whatever the batch.
    """

    token_budget: int = 4_000_000
    seconds_per_token: float = 0.02

    def __post_init__(self) -> None:
        require_count("token_budget", self.token_budget, 1)
        require_number("seconds_per_token", self.seconds_per_token, least=0)
