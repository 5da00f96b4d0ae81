"""Studies of the engine: two requests with a common prefix, and what grows with a text."""

from k3core.studies.engine.growth import GrowthStudy, growth
from k3core.studies.engine.report import render_text
from k3core.studies.engine.run import EngineStudy, before_after
from k3core.studies.engine.tables import KNEE_TOKENS, LANES, pass_cost, token_word

__all__ = [
    "KNEE_TOKENS",
    "LANES",
    "EngineStudy",
    "GrowthStudy",
    "before_after",
    "growth",
    "pass_cost",
    "render_text",
    "token_word",
]
