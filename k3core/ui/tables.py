"""Tables of data: columns with titles in words, and numbers that a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st
from pandas.api import types

from k3core.ui.texts import Texts

_LONG_TEXT = 30  # characters; wider columns push the numbers beside them off a phone
_LARGE = 10_000  # numbers from here on need separators, and no decimals to speak of
_ROW_HEIGHT, _HEADER_HEIGHT, _HEIGHT = 35, 38, 320


class Wide(NamedTuple):
    """A table of which only some columns fit a phone; its download has all.

    Attributes:
        table: all columns.
        first: names of the columns on the screen; its toolbar brings back the others.
    """

    table: pd.DataFrame
    first: Sequence[str]


def narrow(
    tables: Mapping[str, pd.DataFrame], columns: Mapping[str, Sequence[str]]
) -> dict[str, pd.DataFrame | Wide]:
    """``tables`` with those named in ``columns`` narrowed to these columns."""
    return {
        name: Wide(table, columns[name]) if name in columns else table
        for name, table in tables.items()
    }


def show(table: pd.DataFrame, texts: Texts, first: Sequence[str] | None = None) -> None:
    """Draw ``table`` with its codes as they are and its column names in words.

    Args:
        first: names of the columns on the screen; None for all.
    """
    st.dataframe(
        table,
        hide_index=True,
        height=min(_HEADER_HEIGHT + _ROW_HEIGHT * len(table), _HEIGHT),
        column_order=first,
        column_config={str(name): _column(table[name], *texts.column(str(name))) for name in table},
    )


def _column(values: pd.Series, title: str, meaning: str | None) -> Any:
    if types.is_bool_dtype(values):
        return st.column_config.CheckboxColumn(title, help=meaning)
    if types.is_integer_dtype(values):
        return st.column_config.NumberColumn(title, help=meaning, format="localized")
    if types.is_float_dtype(values):
        large = bool(values.abs().max() >= _LARGE)
        return st.column_config.NumberColumn(
            title, help=meaning, format="localized" if large else "%.4g"
        )
    if types.is_string_dtype(values) and values.str.len().max() > _LONG_TEXT:
        return st.column_config.TextColumn(title, help=meaning, width="medium")
    return st.column_config.Column(title, help=meaning)
