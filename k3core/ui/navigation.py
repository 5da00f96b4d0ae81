"""The pages of the app: file, slug (catalogue name) and icon, in reading order."""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st
from streamlit.errors import StreamlitAPIException

from k3core.i18n import t


class PageLink(NamedTuple):
    """One page: ``slug`` names its catalogue, ``path`` its file below the app's folder."""

    slug: str
    path: str
    icon: str


PAGES = (
    PageLink("home", "Home.py", ":material/home:"),
    PageLink("decode", "pages/1_Speculative_Replay.py", ":material/replay:"),
    PageLink("replayssm", "pages/2_ReplaySSM.py", ":material/data_usage:"),
    PageLink("paged_cache", "pages/3_Page_Pool.py", ":material/grid_view:"),
    PageLink("prefix_cache", "pages/4_Prefix_Cache.py", ":material/join_left:"),
    PageLink("engine", "pages/5_Engine.py", ":material/play_circle:"),
    PageLink("parallel", "pages/6_Context_Parallel.py", ":material/splitscreen:"),
    PageLink("fleet", "pages/7_Fleet.py", ":material/hub:"),
    PageLink("capacity", "pages/8_Capacity_Planner.py", ":material/straighten:"),
    PageLink("verification", "pages/9_Verification.py", ":material/fact_check:"),
)
PAGE_BY_SLUG = {page.slug: page for page in PAGES}


def link(
    slug: str,
    lang: str,
    query: dict[str, str],
    label: str | None = None,
    **page_link_options: str | bool,
) -> None:
    """A link to a page, carrying ``query``; labelled with the page's name unless told."""
    page = PAGE_BY_SLUG[slug]
    text = label or t(f"common.page.{slug}", lang)
    try:
        st.page_link(page.path, label=text, icon=page.icon, query_params=query, **page_link_options)  # type: ignore[arg-type]
    except StreamlitAPIException:  # the page was started alone, without its neighbours
        st.caption(text)
