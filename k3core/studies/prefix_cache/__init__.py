"""Studies of the prefix cache: a lookup, its misses and ladder; hash schemes; prefill cost."""

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
from k3core.studies.prefix_cache.scene import EVICTIONS, POLICIES, kept_boundaries
from k3core.studies.prefix_cache.stairs import LADDER_RULES, StairsStudy, stairs

__all__ = [
    "COST_MODELS",
    "EVICTIONS",
    "LADDER_RULES",
    "POLICIES",
    "CostStudy",
    "HashStudy",
    "LadderStudy",
    "LookupStudy",
    "MissStudy",
    "StairsStudy",
    "cost",
    "hash_schemes",
    "kept_boundaries",
    "ladder",
    "lookup",
    "misses",
    "stairs",
]
