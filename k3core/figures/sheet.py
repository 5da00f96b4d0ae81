"""One figure as a sheet of panels, for a file rather than for a page."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import altair as alt

from k3core.figures.style import dress

PANEL_WIDTH = 420
TITLE_LENGTH = 52  # characters that fit above a panel


def sheet(panels: Mapping[str, Any], title: str, subsystem: str, lang: str) -> dict[str, Any]:
    """Vega-Lite specification of the panels two abreast, each with scales of its own.

    Args:
        panels: charts of one figure.
        title: catalogue key of the sheet's title.
        subsystem: catalogue of the panels' words.
        lang: language of the words.
    """
    wide = (panel.properties(width=PANEL_WIDTH) for panel in panels.values())
    chart = alt.concat(*wide, columns=2).properties(
        title=alt.TitleParams(title, fontSize=18, dy=-8)
    )
    chart = chart.resolve_scale(
        color="independent",
        shape="independent",
        size="independent",
        stroke="independent",
        strokeDash="independent",
        opacity="independent",
    )
    dressed = dress(chart, subsystem, lang).configure_view(stroke=None)
    with alt.data_transformers.enable("default", max_rows=None):
        spec: dict[str, Any] = dressed.to_dict()
    for panel in spec["concat"]:
        panel["title"] = textwrap.wrap(panel["title"], TITLE_LENGTH)
    return spec
