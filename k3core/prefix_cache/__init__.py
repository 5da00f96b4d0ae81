"""Two-stage prefix cache of a hybrid model: MLA blocks by chained hash, KDA states by boundary.

An MLA layer can resume anywhere its blocks are kept; a KDA layer only where its state was saved.
A prompt therefore reuses a prefix that ends at a block boundary where both halves exist:

* stage 1 walks the prompt left to right, one block of ``hash_block_tokens`` at a time, as long as
  the block's chained hash is known and ready: the deepest MLA match;
* stage 2 walks back from there to the first boundary at which *every* KDA group has a checkpoint
  (a state without its siblings is useless: K3 report 5.4.1);
* at most ``n - 1`` of ``n`` tokens are reused, because the last one must be computed for its
  logits. So the deepest usable boundary is ``(n - 1) // B * B``.

Life cycle of one prompt, as an engine drives it::

    hit = cache.lookup(tokens)                  # before any allocation; changes nothing
    ticket = cache.register(tokens, pages)      # blocks are known, not visible
    ...                                         # prefill one chunk: the bytes are written
    cache.mark_ready(ticket, chunk_end)         # MLA blocks up to chunk_end become visible
    for group in range(cache.num_kda_groups):   # state after exactly chunk_end tokens
        cache.persist_checkpoint(ticket, chunk_end, group, state_handle)
    cache.lookup(tokens)                        # sees the boundary chunk_end
    cache.abort(ticket)                         # instead, on failure: as if never registered

``persist_checkpoint`` may also come before ``mark_ready``: the checkpoint then becomes visible
together with the block of its boundary, never earlier.

Payloads (page ids, state handles) are opaque and belong to the caller; the cache hands back those
of a hit, and those that it drops on eviction.
"""

from k3core.prefix_cache.block_hash import PromptHashes, chained_hash, token_bytes
from k3core.prefix_cache.cache import PrefixCache, Published
from k3core.prefix_cache.chunks import chunk_ends, fragmented_chunk_ends, next_chunk_end
from k3core.prefix_cache.entries import Registration
from k3core.prefix_cache.granularity import HitGranularity, common_block, require_multiple
from k3core.prefix_cache.hit import (
    DRAFTER_DROP,
    EVICTED,
    GROUP_MISSING,
    LAST_TOKEN,
    NO_CHECKPOINT,
    NOT_READY,
    REASONS,
    PrefixHit,
)
from k3core.prefix_cache.journal import CLEARED, REMOVED, STORED, CacheEvent
from k3core.prefix_cache.keys import ROOT_PARENT, MediaItem, root_parent
from k3core.prefix_cache.retention import (
    RETENTION_RULES,
    Retention,
    dense_boundaries,
    every_boundaries,
    junction_boundaries,
    replay_boundary,
    retained_boundaries,
    surplus_boundaries,
)

__all__ = [
    "CLEARED",
    "DRAFTER_DROP",
    "EVICTED",
    "GROUP_MISSING",
    "LAST_TOKEN",
    "NOT_READY",
    "NO_CHECKPOINT",
    "REASONS",
    "REMOVED",
    "RETENTION_RULES",
    "ROOT_PARENT",
    "STORED",
    "CacheEvent",
    "HitGranularity",
    "MediaItem",
    "PrefixCache",
    "PrefixHit",
    "PromptHashes",
    "Published",
    "Registration",
    "Retention",
    "chained_hash",
    "chunk_ends",
    "common_block",
    "dense_boundaries",
    "every_boundaries",
    "fragmented_chunk_ends",
    "junction_boundaries",
    "next_chunk_end",
    "replay_boundary",
    "require_multiple",
    "retained_boundaries",
    "root_parent",
    "surplus_boundaries",
    "token_bytes",
]
