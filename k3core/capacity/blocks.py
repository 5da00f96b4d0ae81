"""Rules of paged caches as plain functions: blocks, the token counts that logs print, hits.

Every function takes and returns whole numbers of tokens or blocks unless it says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from k3core.errors import CapacityError, require_count

_count = partial(require_count, error=CapacityError)


def aligned_block(page_bytes: int, row_bytes: int, quantum: int) -> int:
    """Tokens of the smallest block, a multiple of ``quantum``, whose rows fill ``page_bytes``.

    vLLM sizes the attention page up to the state page. The quantum is 16 for FlashAttention, 128
    for MLA backends of mid-2026 (64 in 2025) and 512 in the K3 report (5.4.1).
    """
    _count("quantum", quantum, 1)
    _count("page_bytes", page_bytes, 1)
    _count("row_bytes", row_bytes, 1)
    return quantum * -(-page_bytes // (quantum * row_bytes))


def page_padding(block_tokens: int, row_bytes: int, page_bytes: int) -> float:
    """Share by which the state page is padded, as vLLM logs it (0.0868 for Kimi K3 at TP8)."""
    _count("block_tokens", block_tokens, 1)
    _count("row_bytes", row_bytes, 1)
    _count("page_bytes", page_bytes, 1)
    return block_tokens * row_bytes / page_bytes - 1


def request_blocks(num_tokens: int, block_tokens: int, state_blocks: int) -> int:
    """Blocks of one request: its tokens, rounded up, and a fixed number for its states."""
    _count("num_tokens", num_tokens, 1)
    _count("block_tokens", block_tokens, 1)
    _count("state_blocks", state_blocks)
    return -(-num_tokens // block_tokens) + state_blocks


def printed_concurrency(num_blocks: int, blocks_per_request: int) -> float:
    """ "Maximum concurrency" of vLLM's log: a quotient, not a whole number of requests."""
    _count("num_blocks", num_blocks)
    _count("blocks_per_request", blocks_per_request, 1)
    return num_blocks / blocks_per_request


def printed_tokens(num_blocks: int, blocks_per_request: int, max_model_len: int) -> int:
    """ "GPU KV cache size" of vLLM since 2026: concurrency times the longest sequence.

    Not a capacity: it moves with ``max_model_len`` although the memory stays (vLLM #51041).
    """
    _count("max_model_len", max_model_len, 1)
    return int(printed_concurrency(num_blocks, blocks_per_request) * max_model_len)


def printed_tokens_2025(num_blocks: int, num_groups: int, block_tokens: int) -> int:
    """ "GPU KV cache size" of vLLM in 2025: blocks shared evenly over all groups.

    Not a capacity either: a state group holds states, not tokens (vLLM #28228).
    """
    _count("num_blocks", num_blocks)
    _count("num_groups", num_groups, 1)
    _count("block_tokens", block_tokens, 1)
    return num_blocks // num_groups * block_tokens


def reusable_tokens(num_blocks: int, running_blocks: int, segment_blocks: int, block: int) -> int:
    """Tokens of finished prefixes that the pool can keep beside the running requests.

    Args:
        num_blocks: blocks of the pool.
        running_blocks: blocks that running requests hold.
        segment_blocks: blocks that one cached segment of ``block`` tokens takes in all groups.
        block: tokens of a segment.
    """
    _count("num_blocks", num_blocks)
    _count("running_blocks", running_blocks)
    _count("segment_blocks", segment_blocks, 1)
    _count("block", block, 1)
    return max(num_blocks - running_blocks, 0) // segment_blocks * block


def hit_tokens(num_tokens: int, block_tokens: int, dropped_blocks: int = 0) -> int:
    """Longest prefix of a repeated prompt that can be reused.

    At least one token is recomputed, so a prompt of exactly k blocks reuses k - 1; a drafter makes
    some engines drop the last matched block (vLLM #52244, #53504).
    """
    _count("num_tokens", num_tokens)
    _count("block_tokens", block_tokens, 1)
    _count("dropped_blocks", dropped_blocks)
    return max((num_tokens - 1) // block_tokens - dropped_blocks, 0) * block_tokens


def aligned_tokens(num_tokens: int, block_tokens: int) -> int:
    """Tokens up to the last block boundary: where a chunk of a prefill ends (vLLM, Infera #98)."""
    _count("num_tokens", num_tokens)
    _count("block_tokens", block_tokens, 1)
    return num_tokens // block_tokens * block_tokens


def reused_tokens(num_hits: int, tokens_per_hit: int) -> int:
    """Tokens that equal hits spare together."""
    return _count("num_hits", num_hits) * _count("tokens_per_hit", tokens_per_hit)


@dataclass(frozen=True)
class LayerGroups:
    """Layers that share one block table, as vLLM's hybrid cache manager forms them.

    All groups are equally wide. The width is the smaller of both layer counts, unless the larger
    is within a quarter of it; layers that a group lacks are padding (vLLM #28228).

    Attributes:
        num_attention: attention layers, those of a drafter included.
        num_state: layers with a recurrent state.
    """

    num_attention: int
    num_state: int

    def __post_init__(self) -> None:
        _count("num_attention", self.num_attention, 1)
        _count("num_state", self.num_state, 1)

    @property
    def width(self) -> int:
        low, high = sorted((self.num_attention, self.num_state))
        return high if high < 1.25 * low else low

    @property
    def state_groups(self) -> int:
        return -(-self.num_state // self.width)

    @property
    def attention_groups(self) -> int:
        return -(-self.num_attention // self.width)

    @property
    def num_groups(self) -> int:
        return self.attention_groups + self.state_groups

    @property
    def sizes(self) -> tuple[int, ...]:
        """Layers in each group, attention first; 69 states in groups of 29 are 23, 23, 23."""
        return _spread(self.num_attention, self.attention_groups) + _spread(
            self.num_state, self.state_groups
        )

    @property
    def padding_layers(self) -> int:
        """Places of state groups that hold no layer."""
        return self.state_groups * self.width - self.num_state

    @property
    def padding_share(self) -> float:
        """Padding against the real state layers: what vLLM's warning prints."""
        return self.padding_layers / self.num_state


def _spread(count: int, groups: int) -> tuple[int, ...]:
    size = -(-count // groups)
    rest = [size] * groups
    for i in range(size * groups - count):
        rest[groups - 1 - i % groups] -= 1
    return tuple(rest)
