"""Uploaded traces: the widget, what is wrong with a file, and the last one that was good."""

from __future__ import annotations

import streamlit as st

from k3core.errors import TraceError
from k3core.studies.fleet.traces import StoredTrace, store_trace, stored_trace
from k3core.ui.page import Page
from k3core.ui.url import quoted

_ERROR_LENGTH = 200  # characters; the line number stands at its beginning


def trace_upload(page: Page, key: str) -> StoredTrace | None:
    """A trace that the reader gives in the sidebar; None without one.

    The size limit is the server's (``server.maxUploadSize``), packed and unpacked. After a bad file
    the page goes on with the last good one of this session and says so.

    Texts of the page: ``upload.label``, ``upload.help`` ({limit}).
    """
    limit = int(st.get_option("server.maxUploadSize"))
    file = st.sidebar.file_uploader(
        page.t("upload.label"), key=key, help=page.t("upload.help", limit=limit)
    )
    memory = f"_good_trace_{key}"
    if file is None:
        st.session_state.pop(memory, None)
        return None
    try:
        stored = store_trace(file.getvalue(), max_bytes=limit << 20)
    except TraceError as error:
        words = {"file": quoted(file.name), "error": quoted(str(error), _ERROR_LENGTH)}
        return _last_good(page, memory, words)
    st.session_state[memory] = stored.key, file.name
    return stored


def _last_good(page: Page, memory: str, words: dict[str, str]) -> StoredTrace | None:
    """The last good trace, if it is still stored; says which requests the page goes on with."""
    kept, outcome = None, "upload.refused"
    if memory in st.session_state:
        key, name = st.session_state[memory]
        try:
            kept, outcome = stored_trace(key), "upload.kept"
            words["last"] = quoted(name)
        except TraceError:  # other readers' traces have pushed it out
            del st.session_state[memory]
    st.sidebar.error(page.t(outcome, **words), icon=":material/block:")
    return kept
