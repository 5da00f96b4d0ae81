"""Page 8: which roof a deployment stands under, what moves it, and who has measured it."""

from k3core import ui
from k3core.studies.capacity import CUSTOM
from k3core.ui import planner

SCENES = ("plan", "drafts", "grid", "printed", "paste", "published")

page = ui.frame("capacity")
planner.say_what_a_link_lacks(page)
scene = page.choice("capacity_scene", SCENES)
v = page.controls(*planner.SPECS)
own_model = v.model == CUSTOM
if own_model:
    planner.share_own_model(page)
inputs = {key: value for key, value in vars(v).items() if key != "target_requests"}
inputs["config"] = planner.config_text() if own_model else ""
if scene == "plan":
    planner.plan_scene(page, v)
elif scene == "drafts":
    planner.drafts_scene(page, inputs)
elif scene == "grid":
    planner.grid_scene(page, inputs)
elif scene == "printed":
    planner.printed_scene(page, inputs)
elif scene == "paste":
    planner.paste_scene(page, inputs)
else:
    planner.published_scene(page)
page.words()
