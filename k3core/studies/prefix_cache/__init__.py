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
from k3core.studies.prefix_cache.scene import POLICIES, kept_boundaries

__all__ = [
    "COST_MODELS",
    "POLICIES",
    "CostStudy",
    "HashStudy",
    "LadderStudy",
    "LookupStudy",
    "MissStudy",
    "cost",
    "hash_schemes",
    "kept_boundaries",
    "ladder",
    "lookup",
    "misses",
]
