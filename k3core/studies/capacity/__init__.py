"""Studies of capacity: one deployment, two compared, drafts, the token grid, published values."""

from k3core.studies.capacity.drafts import drafts
from k3core.studies.capacity.grid import grid
from k3core.studies.capacity.log import read
from k3core.studies.capacity.plan import CUSTOM, MAX_TOKENS, CapacityStudy, deployment, plan
from k3core.studies.capacity.published import published

__all__ = [
    "CUSTOM",
    "MAX_TOKENS",
    "CapacityStudy",
    "deployment",
    "drafts",
    "grid",
    "plan",
    "published",
    "read",
]
