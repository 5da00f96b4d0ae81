"""One palette and one theme for all charts, and the step that gives a chart its language.

A figure never knows the reader's language or theme. It writes catalogue keys where words belong:

- titles of charts, axes, legends and tooltips: the key itself (``"decode.axis.position"``);
- words inside the data: a column of codes, shown through ``label_expr("datum.value")`` on an axis
  or legend, or ``labelled(chart, "column")`` for text marks.

``dress`` then replaces the keys by words and moves the palette to the dark theme when asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt

from k3core.i18n import catalogue

# Okabe-Ito: safe for colour-blind eyes. A colour has one meaning everywhere.
MLA = "#0072B2"
KDA = "#E69F00"
ACCEPTED = "#009E73"
REJECTED = "#D55E00"
SNAPSHOT = "#CC79A7"
INPUTS = "#56B4E9"
NEUTRAL = "#9AA0A6"
FREE = "#DADCE0"
MIDDLE = "#F4F4F4"  # zero of a two-sided heat map: all but the ground
GAP = "#FFFFFE"  # line between filled cells: the ground (white text on a mark is "#FFFFFF")
INK = "#1F1F1F"  # text on a filled mark, in both themes

_DARK = {
    MLA: "#3D9BD6",
    ACCEPTED: "#1FB98F",
    REJECTED: "#EE7A33",
    FREE: "#3C4048",
    MIDDLE: "#2A2A2A",
    GAP: "#14171C",
}
_DARK_TEXT = "#E8EAED"
PALE = 0.28  # opacity of what is not needed any more

BYTES_LABELS = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, ',.3~r') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, ',.3~r') + ' MiB' : "
    "datum.value >= 1024 ? format(datum.value / 1024, ',.3~r') + ' KiB' : "
    "format(datum.value, ',~r') + ' B'"
)
COUNT_LABELS = (
    "datum.value >= 1048576 && datum.value % 1048576 == 0 ? format(datum.value / 1048576, ',~r') "
    "+ 'M' : datum.value >= 1024 && datum.value % 1024 == 0 ? format(datum.value / 1024, ',~r') "
    "+ 'K' : format(datum.value, ',~r')"
)


def bytes_axis(title: str | None, high: float, low: float | None = None) -> alt.Axis:
    """A byte axis whose ticks are round in binary units; a log axis when ``low`` is given.

    Args:
        title: catalogue key.
        high, low: largest (smallest) value of the axis in bytes.
    """
    if low is None:
        step = 2 ** max(math.ceil(math.log2(max(high, 4) / 4)), 0)
        values = [float(step * i) for i in range(int(high // step) + 2)]
    else:
        first, last = math.floor(math.log2(max(low, 1))), math.ceil(math.log2(max(high, 2)))
        stride = max(math.ceil((last - first) / 6), 1)
        values = [2.0**power for power in range(first, last + 1, stride)]
    return alt.Axis(title=title, values=values, labelExpr=BYTES_LABELS)


def legend(**options: Any) -> alt.Legend:
    """A legend above the chart whose labels are words; two columns, so that a phone shows them."""
    return alt.Legend(orient="top", columns=2, labelExpr=label_expr(), labelLimit=150, **options)


def label_expr(value: str = "datum.value") -> str:
    """Vega expression that turns a code into its word; give it to ``labelExpr``."""
    return f"labels[{value}] || {value}"


def row_axis(rows: Mapping[str, float], limit: int = 130) -> alt.Axis:
    """An axis of named rows without lines: ``rows`` maps a label's code to the place of its row."""
    names = " ".join(f"datum.value == {at} ? labels['{row}'] :" for row, at in rows.items())
    return alt.Axis(
        values=list(rows.values()),
        labelExpr=f"{names} ''",
        title=None,
        grid=False,
        domain=False,
        ticks=False,
        labelFontSize=12,
        labelLimit=limit,
    )


def labelled(chart: alt.Chart, column: str) -> alt.Chart:
    """Add ``<column>_text``, the words of the codes in ``column`` (for text and tooltips)."""
    expression = label_expr(f"datum['{column}']")
    return chart.transform_calculate(**{f"{column}_text": expression})


def layer(*charts: alt.Chart | alt.LayerChart) -> alt.LayerChart:
    """Charts drawn over each other."""
    return alt.LayerChart(layer=list(charts))


def _walk(node: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Every (mapping, key) below an Altair object whose value is a plain string."""
    if isinstance(node, alt.SchemaBase):
        fields: Any = node._kwds
    elif isinstance(node, dict):
        fields = node
    elif isinstance(node, (list, tuple)):
        for item in node:
            yield from _walk(item)
        return
    else:
        return
    for name, value in list(fields.items()):
        if name == "data" or value is alt.Undefined:
            continue
        if isinstance(value, str):
            yield fields, name
        elif isinstance(value, (list, tuple)) and any(isinstance(item, str) for item in value):
            yield from _walk_strings(fields, name)
        else:
            yield from _walk(value)


def _walk_strings(fields: dict[str, Any], name: str) -> Iterator[tuple[dict[str, Any], str]]:
    items = dict(enumerate(fields[name]))
    for index, item in items.items():
        if isinstance(item, str):
            yield items, index  # type: ignore[misc]
        else:
            yield from _walk(item)
    fields[name] = list(items.values())


def dress(chart: Any, subsystem: str, lang: str = "en", dark: bool = False) -> Any:
    """Give a figure's chart its words and its theme; changes and returns ``chart``.

    Args:
        chart: an Altair chart fresh from a figure (charts are made anew at each call).
        subsystem: name of the catalogue file whose ``label`` table holds the data codes.
        lang: language code of the catalogue.
        dark: whether the palette is shown on a dark ground.
    """
    texts = catalogue(lang)
    has_labels = False
    for fields, name in _walk(chart):
        value = fields[name]
        if value in texts:
            fields[name] = texts[value]
        elif dark and value in _DARK:
            fields[name] = _DARK[value]
        has_labels = has_labels or "labels[" in value
    if has_labels:
        param = alt.VariableParameter(name="labels", value=label_map(subsystem, lang))
        params = [] if chart._get("params") is alt.Undefined else list(chart.params)
        chart.params = [*params, param]
    return chart.configure_text(color=_DARK_TEXT) if dark else chart


def label_map(subsystem: str, lang: str = "en") -> dict[str, str]:
    """Words of the data codes: ``common.label.<code>``, then ``<subsystem>.label.<code>``."""
    words: dict[str, str] = {}
    for prefix in ("common.label.", f"{subsystem}.label."):
        words.update(
            (key.removeprefix(prefix), text)
            for key, text in catalogue(lang).items()
            if key.startswith(prefix)
        )
    return words
