"""Hit rate of the newest requests, by source."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from k3core.errors import require, require_count, require_type

DEVICE, HOST = "device", "host"


class HitWindow:
    """Sums over the newest requests; no request is not the same as no hit.

    Args:
        num_requests: requests that count (vLLM: 1,000).
    """

    def __init__(self, num_requests: int = 1000) -> None:
        self.max_requests = require_count("num_requests", num_requests, 1)
        self._rows: deque[tuple[int, dict[str, int]]] = deque()
        self._hits: Counter[str] = Counter()
        self._num_tokens = 0

    def record(self, num_tokens: int, hit_tokens: Mapping[str, int]) -> None:
        """One request: tokens that it asked for, and those that each source had.

        Raises:
            K3Error: a negative count, or more hits than tokens.
        """
        require_count("num_tokens", num_tokens)
        require_type("hit_tokens", hit_tokens, Mapping)  # type: ignore[type-abstract]
        hits = {
            source: require_count(f"hit_tokens[{source!r}]", tokens)
            for source, tokens in hit_tokens.items()
        }
        require(
            sum(hits.values()) <= num_tokens,
            f"hit_tokens={hits} exceed num_tokens={num_tokens}",
        )
        self._rows.append((num_tokens, hits))
        self._num_tokens += num_tokens
        self._hits.update(hits)
        if len(self._rows) > self.max_requests:
            old_tokens, old_hits = self._rows.popleft()
            self._num_tokens -= old_tokens
            self._hits.subtract(old_hits)

    def clear(self) -> None:
        self._rows.clear()
        self._hits.clear()
        self._num_tokens = 0

    @property
    def num_requests(self) -> int:
        """Requests in the window."""
        return len(self._rows)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def hit_tokens(self) -> int:
        return sum(self._hits.values())

    @property
    def hit_rate(self) -> float | None:
        """Share of the tokens in [0, 1]; None when the window holds no tokens."""
        return self.hit_tokens / self._num_tokens if self._num_tokens else None

    @property
    def by_source(self) -> dict[str, int]:
        """Hit tokens of each source that ever had some."""
        return {source: tokens for source, tokens in self._hits.items() if tokens}
