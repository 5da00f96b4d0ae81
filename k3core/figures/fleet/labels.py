"""Where the names of the routers stand in the main picture: beside their marks, on no other one.

Places are found twice, since a picture does not know how wide it will be: for a desktop beside the
mark or, led by a line, above or below it; for a phone, whose names take half the width, wherever
there is room. All lengths are parts of the width or the height of the plot.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

_CHAR_WIDTH, _LABEL_GAP = 0.0105, 0.022
_LABEL_HEIGHT = 0.055
_LABEL_STEPS = tuple(0.055 * step for step in range(9))

_PHONE_CHAR, _PHONE_GAP = 0.0225, 0.01  # of 240 pixels, at 11 points
_PHONE_HEIGHT = 0.055


def with_labels(table: pd.DataFrame, low: float, top: float, high: float) -> pd.DataFrame:
    """The rows with the places of their labels, in the units of the axes.

    Args:
        table: rows of ``RoutersStudy`` with ``shown_s`` and ``off_scale``.
        low, top: ends of the log axis of seconds.
        high: end of the axis of reuse.

    Returns:
        the rows with ``label_left``, ``label_reuse``, ``label_s``, ``led``, ``led_from``,
        ``led_to`` for a desktop, and ``narrow_reuse``, ``narrow_s``, ``narrow_led``,
        ``narrow_from``, ``narrow_to`` for a phone.
    """
    wide = ("label_left", "label_reuse", "label_s", "led")
    narrow = ("narrow_reuse", "narrow_s", "narrow_led", "narrow_from", "narrow_to")
    for names, places in (
        (wide, _wide_places(table, low, top, high)),
        (narrow, _narrow_places(table, low, top, high)),
    ):
        for name, column in zip(names, zip(*places, strict=True), strict=True):
            table[name] = column
    gap = 0.6 * _LABEL_GAP * high
    table["led_from"] = table["mla_match"].where(~table["label_left"], table["reuse"])
    table["led_to"] = table["label_reuse"] + gap * (1 - 2 * table["label_left"])
    return table


def _num_chars(row: pd.Series) -> int:
    """Characters of a label, nearly: the name and the numbers that follow it."""
    return len(row["router"]) + 2 + 9 * bool(row["off_scale"]) + 8 * (row["refused_share"] > 0)


def _phone_radius(row: pd.Series) -> float:
    """Of a mark and the ring of its refusals."""
    large = bool(row["peak_to_mean"] > 4)
    return 0.042 + 0.025 * large + (0.02 + 0.02 * large) * (row["refused_share"] > 0)


def _marks(
    table: pd.DataFrame, low: float, top: float, high: float
) -> tuple[list[float], list[tuple[float, float]]]:
    """Height of each mark, and where its pair (usable, believed) begins and ends."""
    span = math.log(top / low)
    heights = [math.log(float(value) / low) / span for value in table["shown_s"]]
    ends = [
        (float(row["reuse"]) / high, float(max(row["reuse"], row["mla_match"])) / high)
        if row["ticks"] == "raw"
        else (float(row["reuse"]) / high,) * 2
        for _, row in table.iterrows()
    ]
    return heights, ends


def _narrow_places(
    table: pd.DataFrame, low: float, top: float, high: float
) -> list[tuple[float, float, bool, float, float]]:
    """Per row: where its label begins, its height, and the line that leads to it, if any.

    The free place that is nearest to the mark, names of the crowded top first.
    """
    span = math.log(top / low)
    heights, ends = _marks(table, low, top, high)
    # left, right, bottom, top of what is drawn already
    radii = [_phone_radius(row) for _, row in table.iterrows()]
    taken = [
        (left - radius, right + radius, y - radius, y + radius)
        for (left, right), y, radius in zip(ends, heights, radii, strict=True)
    ]
    places = [(0.0, low, False, 0.0, 0.0)] * len(table)
    raw = [at for at, ticks in enumerate(table["ticks"]) if ticks == "raw"]
    for at in sorted(raw, key=lambda at: -heights[at]):
        width = min(_PHONE_CHAR * _num_chars(table.iloc[at]), 1.0)
        (left, right), y, gap = ends[at], heights[at], radii[at] + _PHONE_GAP
        beside = (right + gap, left - gap - width)
        starts = np.array([*beside, *np.linspace(0, 1 - width, 25)])
        levels = np.concatenate(([y], np.arange(0.03, 1.0, _PHONE_HEIGHT / 2)))
        start, level = (grid.ravel() for grid in np.meshgrid(starts, levels))
        away = np.maximum(0, np.maximum(start - beside[0], left - gap - start - width))
        cost = away + 1.5 * np.abs(level - y)
        free = (start >= 0) & (start + width <= 1.0)
        for begin, end, bottom, roof in taken:
            over = (start < end) & (start + width > begin)
            half = _PHONE_HEIGHT / 2
            free &= ~(over & (level + half > bottom) & (level - half < roof))
        best = int(np.argmin(np.where(free, cost, cost + 100)))
        x, place = float(start[best]), float(level[best])
        half = _PHONE_HEIGHT / 2
        taken.append((x, x + width, place - half, place + half))
        led = bool(cost[best] > _PHONE_HEIGHT)
        near = min(max((left + right) / 2, x), x + width)
        mark = min(max(near, left), right)
        places[at] = (x * high, low * math.exp(place * span), led, mark * high, near * high)
    return places


def _wide_places(
    table: pd.DataFrame, low: float, top: float, high: float
) -> list[tuple[bool, float, float, bool]]:
    """Per row: label left of its mark, where it starts, its height, and whether a line leads to it.

    Beside the mark, else the nearest place that is free of marks and of the labels placed before.
    """
    span = math.log(top / low)
    heights, ends = _marks(table, low, top, high)
    taken: list[tuple[float, float, float]] = []  # labels: from, to, height
    places = [(False, 0.0, 1.0, False)] * len(table)

    def is_free(own: int, start: float, end: float, height: float) -> bool:
        on_mark = any(
            other != own
            and abs(y - height) < _LABEL_HEIGHT
            and start < right + _LABEL_GAP / 2
            and left - _LABEL_GAP / 2 < end
            for other, ((left, right), y) in enumerate(zip(ends, heights, strict=True))
        )
        on_label = any(
            abs(y - height) < _LABEL_HEIGHT
            and start < right + 2 * _LABEL_GAP
            and left - 2 * _LABEL_GAP < end
            for left, right, y in taken
        )
        return 0.01 <= height <= 1.0 and start >= 0 and end <= 1.02 and not on_mark and not on_label

    raw = [at for at, ticks in enumerate(table["ticks"]) if ticks == "raw"]
    for at in sorted(raw, key=lambda at: -heights[at]):
        width = _CHAR_WIDTH * _num_chars(table.iloc[at])
        left, right = ends[at]
        sides = [(False, right + _LABEL_GAP), (True, left - _LABEL_GAP - width)]
        if left > 0.55:
            sides.reverse()
        choices = [
            (side, start, heights[at] + step * sign)
            for step in _LABEL_STEPS
            for sign in (-1, 1)
            for side, start in sides
        ]
        side, start, height = next(
            (choice for choice in choices if is_free(at, choice[1], choice[1] + width, choice[2])),
            (*sides[0], heights[at]),
        )
        taken.append((start, start + width, height))
        anchor = left if side else right
        led = abs(height - heights[at]) > 1.5 * _LABEL_HEIGHT
        places[at] = (side, anchor * high, low * math.exp(height * span), led)
    return places
