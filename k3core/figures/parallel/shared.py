"""What the pictures of context parallelism share: kinds, colours, legends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Chart = alt.Chart | alt.LayerChart | alt.FacetChart

KINDS = alt.Scale(domain=["kda", "mla"], range=[style.KDA, style.MLA])


def kind_legend(**options: Any) -> alt.Legend:
    """Legend above the picture, its codes as words."""
    return alt.Legend(orient="top", labelExpr=style.label_expr(), title=None, **options)


def line_legend() -> alt.Legend:
    """Legend for lines that differ in their dashes."""
    return kind_legend(symbolType="stroke", symbolSize=400)
