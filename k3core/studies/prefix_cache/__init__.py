"""Studies of the prefix cache: a lookup, its misses and ladder; hash schemes; prefill cost."""

from k3core.studies.prefix_cache.cases import (
    CASES,
    EVICTIONS,
    POLICIES,
    case_value,
    deepest_kept,
    kept_boundaries,
)
from k3core.studies.prefix_cache.cliff import INTERVALS, CliffStudy, cliff
from k3core.studies.prefix_cache.cost import COST_MODELS, CostStudy, cost
from k3core.studies.prefix_cache.hashing import HashStudy, hash_schemes
from k3core.studies.prefix_cache.lookup import (
    LadderStudy,
    LookupStudy,
    MissStudy,
    ladder,
    lookup,
    misses,
)
from k3core.studies.prefix_cache.player import (
    PLAYER_RULES,
    SCENARIOS,
    PlayerStudy,
    first_lookup,
    num_steps,
    player,
)
from k3core.studies.prefix_cache.policies import POLICY_CODES, PolicyStudy, policies
from k3core.studies.prefix_cache.stairs import LADDER_RULES, StairsStudy, stairs
from k3core.studies.prefix_cache.traffic import HISTORIES

__all__ = [
    "CASES",
    "COST_MODELS",
    "EVICTIONS",
    "HISTORIES",
    "INTERVALS",
    "LADDER_RULES",
    "PLAYER_RULES",
    "POLICIES",
    "POLICY_CODES",
    "SCENARIOS",
    "CliffStudy",
    "CostStudy",
    "HashStudy",
    "LadderStudy",
    "LookupStudy",
    "MissStudy",
    "PlayerStudy",
    "PolicyStudy",
    "StairsStudy",
    "case_value",
    "cliff",
    "cost",
    "deepest_kept",
    "first_lookup",
    "hash_schemes",
    "kept_boundaries",
    "ladder",
    "lookup",
    "misses",
    "num_steps",
    "player",
    "policies",
    "stairs",
]
