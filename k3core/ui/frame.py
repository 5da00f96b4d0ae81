"""The frame that every page shares: configuration, page list, language, title and idea."""

from __future__ import annotations

import streamlit as st

from k3core import i18n
from k3core.ui import runtime
from k3core.ui.controls import Choice
from k3core.ui.form import Form
from k3core.ui.notes import Notes
from k3core.ui.page import Page
from k3core.ui.texts import Texts
from k3core.ui.url import UrlState, quoted

_MOST_NAMED = 5  # unknown keys of a link

_STYLE = """<style>
[data-testid="stMainBlockContainer"] {padding-top: 2.6rem; padding-bottom: 3rem;}
[data-testid="stMetricValue"] {font-size: 1.55rem;}
[class*="st-key-stale_"] {opacity: 0.45;}
</style>"""


def frame(slug: str) -> Page:
    """Open a page: configuration, title and idea, navigation, language.

    Args:
        slug: name of the page's catalogue and subsystem (``decode``, ``fleet``, ``home`` ...).
    """
    state = UrlState()
    asked = state.incoming.get("lang", i18n.DEFAULT_LANGUAGE)
    known = asked in i18n.languages()
    texts = Texts(slug, asked if known else i18n.DEFAULT_LANGUAGE)
    name = texts.t(f"page.{slug}")
    st.set_page_config(
        page_title=name if slug == "home" else f"{name} · {texts.t('product')}",
        page_icon="🧮",
        layout="wide",
    )
    st.html(_STYLE)
    with st.sidebar:
        st.markdown(f"### {texts.t('product')}")
        links = st.empty()
    st.title(texts.t("title"), anchor=False)
    st.markdown(texts.t("idea"))
    notes = Notes()
    form = Form(texts, state, links, notes.add)
    form.sync({})
    if len(i18n.languages()) > 1:
        spec = Choice("lang", i18n.DEFAULT_LANGUAGE, options=i18n.languages(), style="segments")
        with st.sidebar:
            if form.draw([spec])["lang"] != texts.lang:
                st.rerun()
    if not known:
        notes.add(texts.t("bad_language", raw=quoted(asked)))
    if unknown := state.unknown():
        names = ", ".join(f"`{quoted(key)}`" for key in unknown[:_MOST_NAMED])
        more = " …" if len(unknown) > _MOST_NAMED else ""
        notes.add(texts.t("unknown_keys", keys=names + more))
    if slug != "home":  # Home starts it after its picture, which needs no torch
        runtime.prewarm()
    return Page(texts, form, notes)
