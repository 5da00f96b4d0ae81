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
from k3core.studies.prefix_cache.player import BLOCK, PLAYER_RULES, PlayerStudy, player
from k3core.studies.prefix_cache.policies import POLICY_CODES, PolicyStudy, policies
from k3core.studies.prefix_cache.scenarios import (
    OWN,
    SCENARIOS,
    TEXTS,
    Script,
    Step,
    parse_steps,
    script,
)
from k3core.studies.prefix_cache.stairs import LADDER_RULES, StairsStudy, stairs
from k3core.studies.prefix_cache.traffic import HISTORIES

__all__ = [
    "BLOCK",
    "CASES",
    "COST_MODELS",
    "EVICTIONS",
    "HISTORIES",
    "INTERVALS",
    "LADDER_RULES",
    "OWN",
    "PLAYER_RULES",
    "POLICIES",
    "POLICY_CODES",
    "SCENARIOS",
    "TEXTS",
    "CliffStudy",
    "CostStudy",
    "HashStudy",
    "LadderStudy",
    "LookupStudy",
    "MissStudy",
    "PlayerStudy",
    "PolicyStudy",
    "Script",
    "StairsStudy",
    "Step",
    "case_value",
    "cliff",
    "cost",
    "deepest_kept",
    "hash_schemes",
    "kept_boundaries",
    "ladder",
    "lookup",
    "misses",
    "parse_steps",
    "player",
    "policies",
    "script",
    "stairs",
]
