"""What the pictures of capacity share: types, colours of a bill, axes in powers of two."""

from __future__ import annotations

import math
from collections.abc import Mapping

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Panels = dict[str, alt.Chart | alt.LayerChart]

WINDOW_COLOUR = "#B87A00"
PARTS = ("state", "conv_window", "reserved_slots", "rollback", "mla", "padding")
PART_COLOURS = (style.KDA, WINDOW_COLOUR, "#F3D291", style.INPUTS, style.MLA, style.NEUTRAL)
DARK_TEXT = "#1F2328"
TOKEN_TICKS = [2**i for i in range(9, 25)]
KEEPS = alt.Scale(domain=["states", "records"], range=[style.SNAPSHOT, style.INPUTS])


def layer(*charts: alt.Chart) -> alt.LayerChart:
    return alt.LayerChart(layer=list(charts))


def power_of_two_above(value: float) -> float:
    return 2.0 ** math.ceil(math.log2(max(value, 1.0)))


def quarters(value: float) -> list[float]:
    """Ticks at quarters of the next power of two: whole numbers of binary units."""
    return [power_of_two_above(value) * i / 4 for i in range(5)]


def power_of_ten_above(value: float) -> float:
    return 10.0 ** max(1, math.ceil(math.log10(max(value, 1.0) * 1.2)))
