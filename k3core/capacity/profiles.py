"""Rules of public engines as data: who cuts memory how, in which version, and where that is said.

Such rules change from month to month; a number made by one names its row.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3core.errors import CapacityError, shown


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
        block_rule: how the block follows from the state, or an empty string.
        slots: how many states a request holds.
        retention: which states stay after a request, by default.
        drafter_drop: blocks of a match that a drafter gives up.
    """

    code: str
    engine: str
    version: str
    date: str
    source: str
    block_quantum: int = 0
    state_pool_ratio: float = 0.0
    slots_per_request: int = 0
    block_rule: str = ""
    slots: str = ""
    retention: str = ""
    drafter_drop: int = 0


@dataclass(frozen=True)
class SlotStrategy:
    """State slots that an engine sets aside per running request.

    Attributes:
        code: stable name.
        reserved: slots set aside when a request is admitted.
        held: slots that it fills at most; the rest of the reservation stays empty.
        source: public file or thread.
    """

    code: str
    reserved: int
    held: int
    source: str

    @property
    def unreachable_share(self) -> float:
        """Share of the state pool that no running request ever fills."""
        return 1 - self.held / self.reserved


_COOKBOOK = "SGLang docs_new/cookbook/autoregressive/Moonshotai/Kimi-K3.mdx, mid-2026"

STRATEGIES: dict[str, SlotStrategy] = {
    strategy.code: strategy
    for strategy in (
        SlotStrategy("radix-off", 1, 1, _COOKBOOK),
        SlotStrategy("no-extra-buffer", 3, 3, _COOKBOOK),
        SlotStrategy(
            "extra-buffer", 5, 4, f"{_COOKBOOK}; a public report holds 4 of 5 reserved slots"
        ),
        SlotStrategy("extra-buffer-lazy", 4, 4, _COOKBOOK),
    )
}

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
            block_rule="none: MLA rows are counted singly",
            slots="S = 1, 3, 4 or 5 by cache strategy",
            retention="a state at the tracked positions of the radix tree",
        ),
        EngineProfile(
            "blocks",
            "vLLM",
            "main",
            "mid-2026",
            "vLLM #28228, #51855, #54458; quantum 64 in 2025",
            block_quantum=128,
            block_rule="q x ceil(state page / (q x bytes per token)), q = 128 for MLA, 16 for GQA",
            slots="1 + ns (cache mode none) or 2 + ns (align) blocks per state group",
            retention="the last aligned boundary of a request",
            drafter_drop=1,
        ),
    )
}


def get_profile(code: str) -> EngineProfile:
    """The profile with this code.

    Raises:
        CapacityError: the code is unknown; the message lists the known ones.
    """
    if not isinstance(code, str) or code not in PROFILES:
        raise CapacityError(f"pool_rule={shown(code)} is unknown; allowed: {', '.join(PROFILES)}")
    return PROFILES[code]
