"""What pages share: the frame, controls that live in the URL, cached studies, links."""

from k3core.ui.controls import Choice, Control, Number, Slider, Steps, TextBox, Toggle
from k3core.ui.frame import frame
from k3core.ui.navigation import PAGES, link
from k3core.ui.page import Metric, Page
from k3core.ui.runtime import prewarm
from k3core.ui.shared import (
    ACCEPTED,
    DRAFT_LEN,
    INPUT_DTYPE,
    MLA_DTYPE,
    MODEL,
    SEED,
    STATE_DTYPE,
    TP,
)
from k3core.ui.steps import StepResults, in_steps

__all__ = [
    "ACCEPTED",
    "DRAFT_LEN",
    "INPUT_DTYPE",
    "MLA_DTYPE",
    "MODEL",
    "PAGES",
    "SEED",
    "STATE_DTYPE",
    "TP",
    "Choice",
    "Control",
    "Metric",
    "Number",
    "Page",
    "Slider",
    "StepResults",
    "Steps",
    "TextBox",
    "Toggle",
    "frame",
    "in_steps",
    "link",
    "prewarm",
]
