"""Rules of public engines as data: who cuts memory how, in which version, and where that is said.

Such rules change from month to month; a number made by one names its row.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3core.errors import CapacityError


@dataclass(frozen=True)
class EngineProfile:
    """How one engine cuts the cache memory of a rank.

    Attributes:
        code: stable name, used in URLs.
        engine: the engine's own name.
        version: version or branch the rule was read from.
        date: when that was, as precisely as known.
        source: public file or thread.
        block_quantum: blocks are multiples of this many tokens; 0 where the rule has no blocks.
        state_pool_ratio: default state pool over MLA pool; 0 where there is one pool.
        slots_per_request: default state slots reserved per running request; 0 as above.
    """

    code: str
    engine: str
    version: str
    date: str
    source: str
    block_quantum: int = 0
    state_pool_ratio: float = 0.0
    slots_per_request: int = 0


PROFILES: dict[str, EngineProfile] = {
    profile.code: profile
    for profile in (
        EngineProfile(
            "split",
            "SGLang",
            "main",
            "mid-2026",
            "docs_new/cookbook/autoregressive/Moonshotai/Kimi-K3.mdx",
            state_pool_ratio=0.9,
            slots_per_request=5,
        ),
        EngineProfile(
            "blocks",
            "vLLM",
            "main",
            "mid-2026",
            "vLLM #28228, #51855, #54458; quantum 64 in 2025",
            block_quantum=128,
        ),
    )
}


def get_profile(code: str) -> EngineProfile:
    """The profile with this code.

    Raises:
        CapacityError: the code is unknown; the message lists the known ones.
    """
    if code not in PROFILES:
        raise CapacityError(f"pool_rule={code!r} is unknown; allowed: {', '.join(PROFILES)}")
    return PROFILES[code]
