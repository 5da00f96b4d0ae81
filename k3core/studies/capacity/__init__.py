"""Studies of capacity: one deployment, drafts, the token grid, printed and published numbers."""

from k3core.capacity.saved_plan import CUSTOM, SavedPlan
from k3core.studies.capacity.drafts import drafts
from k3core.studies.capacity.grid import grid
from k3core.studies.capacity.log import read
from k3core.studies.capacity.plan import MAX_TOKENS, CapacityStudy, deployment, plan
from k3core.studies.capacity.printed import printed
from k3core.studies.capacity.published import VERDICT_CODES, published

__all__ = [
    "CUSTOM",
    "MAX_TOKENS",
    "VERDICT_CODES",
    "CapacityStudy",
    "SavedPlan",
    "deployment",
    "drafts",
    "grid",
    "plan",
    "printed",
    "published",
    "read",
]
