"""Short-hands of the peer cases."""

from k3core.paged_cache import PagePool
from k3core.prefix_cache import PromptHashes, Retention
from k3core.prefix_cache.manager import HybridCacheManager

DENSE = Retention("dense")


def make(num_pages, block=512, groups=1, retention=DENSE, **kwargs):
    """A manager of an accounting-only pool, dense checkpoints as in a hand-built vLLM manager."""
    return HybridCacheManager(
        PagePool(num_pages, 64, poison=True),
        hash_block_tokens=block,
        num_kda_groups=groups,
        retention=retention,
        **kwargs,
    )


def run(manager, name, tokens, chunks=None, **kwargs):
    """Admit a prompt and compute it in chunks (sizes); None computes it in one."""
    admission = manager.admit(name, tokens, **kwargs)
    assert admission is not None
    at = admission.reused_tokens
    length = tokens.num_tokens if isinstance(tokens, PromptHashes) else len(tokens)
    for size in chunks or (length - at,):
        at += size
        assert manager.grow(name, at) is not None
        manager.computed(name, at)
        manager.check()
    assert at == length
    return admission


def serve(manager, name, tokens, chunks=None, **kwargs):
    """``run`` to the end and release."""
    admission = run(manager, name, tokens, chunks, **kwargs)
    manager.release(name)
    manager.check()
    return admission


def hit(manager, tokens):
    return manager.lookup(tokens).matched_tokens
