"""The capacity planner's page in parts: its controls, its links, and one file per scene."""

from k3core.ui.planner.controls import SPECS, config_text, model_of, planned_of, values_of
from k3core.ui.planner.links import open_with, query_of, row_query, say_what_a_link_lacks
from k3core.ui.planner.paste import paste_scene, share_own_model
from k3core.ui.planner.plan import plan_scene
from k3core.ui.planner.published import published_scene
from k3core.ui.planner.scenes import drafts_scene, grid_scene, printed_scene

__all__ = [
    "SPECS",
    "config_text",
    "drafts_scene",
    "grid_scene",
    "model_of",
    "open_with",
    "paste_scene",
    "plan_scene",
    "planned_of",
    "printed_scene",
    "published_scene",
    "query_of",
    "row_query",
    "say_what_a_link_lacks",
    "share_own_model",
    "values_of",
]
