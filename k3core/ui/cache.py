"""Cached studies: one bounded cache per study, keyed by plain values."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import streamlit as st

MAX_RESULTS = 32  # per study; a result is a few tables of at most some thousand rows


@lru_cache(maxsize=64)
def cached(study: Callable[..., Any]) -> Callable[..., Any]:
    """``study`` behind ``st.cache_data``; every session gets its own copy of a result."""
    remember = st.cache_data(max_entries=MAX_RESULTS, show_spinner=False)
    return cast("Callable[..., Any]", remember(study))
