"""What the pictures of the verification share: rows, outcomes, tooltips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]

USUAL = 5e-2
HEIGHT = 430
STATUS = ("healthy", "caught", "blind", "broken")
STATUS_COLOURS = [style.ACCEPTED, style.ACCEPTED, style.REJECTED, style.REJECTED]
KIND_SHAPES = alt.Scale(domain=["self", "oracle"], range=["circle", "diamond"])


def row_axis(cells: pd.DataFrame) -> alt.Axis:
    rows = cells.drop_duplicates("row").sort_values("row")
    names = " ".join(
        f"datum.value == {row.row} ? substring(labels['{row.page}'], 0, 1) + '  ' + "
        f"labels['{row.check}'] :"
        for row in rows.itertuples()
    )
    return alt.Axis(
        values=list(range(len(rows))),
        labelExpr=f"{names} ''",
        title=None,
        grid=False,
        domain=False,
        ticks=False,
        labelLimit=190,
        labelFontSize=11,
        labelOverlap=False,
    )


def legend(**options: Any) -> alt.Legend:
    """One column, so that two legends stand side by side on a phone."""
    return alt.Legend(
        orient="top",
        columns=1,
        labelExpr=style.label_expr(),
        labelLimit=150,
        labelFontSize=11,
        rowPadding=0,
        offset=4,
        **options,
    )


def status_legend() -> alt.Legend:
    return legend(values=["caught", "blind"], symbolType="square")


def tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("check_text:N", title="verification.axis.check"),
        alt.Tooltip("page_text:N", title="verification.axis.page"),
        alt.Tooltip("fault_text:N", title="verification.axis.fault"),
        alt.Tooltip("kind_text:N", title="verification.axis.kind"),
        alt.Tooltip("status_text:N", title="verification.axis.status"),
        alt.Tooltip("value:Q", format=".2e", title="verification.axis.value"),
        alt.Tooltip("tolerance:Q", format=".0e", title="verification.axis.tolerance"),
    ]
