"""The URL is the truth: a page's controls live in its query string and nowhere else.

Plain widget keys lose their values on a page switch, and Streamlit's own query binding loses the
values of a link once the reader changes the page. So each run compares the URL with the copy saved
at the end of the last run: a difference means that the reader loaded a link, went back or forward,
and the URL wins; otherwise the widgets' values win and are written to the URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import streamlit as st

from k3core.i18n import catalogue

_SAVED = "_url_saved"
_NO_CONTROLS = ("lang", "pin", "row")
"""Keys without a widget: the language, and the planner's pinned plan and published value."""


@lru_cache(maxsize=1)
def known_keys() -> frozenset[str]:
    """Keys that some page reads: every control of the app has a text ``control.<key>``."""
    parts = (key.split(".") for key in catalogue())
    controls = {path[2] for path in parts if len(path) == 3 and path[1] == "control"}
    return frozenset({key for key in controls if not key.endswith("_help")}.union(_NO_CONTROLS))


class UrlState:
    """The query of one run: what it held at the start and what it will hold at the end."""

    def __init__(self) -> None:
        self.incoming: dict[str, str] = {key: st.query_params[key] for key in st.query_params}
        self._saved: dict[str, str] | None = st.session_state.get(_SAVED)
        self.changed = self.incoming != self._saved
        self.outgoing = dict(self.incoming)

    def carried(self, key: str) -> bool:
        """Whether ``key`` came along from the last run, on this page or on another one."""
        raw = self.incoming.get(key)
        return raw is not None and raw == (self._saved or {}).get(key)

    def unknown(self) -> list[str]:
        """Keys of a link just opened that no page reads."""
        return [key for key in self.incoming if key not in known_keys() and not self.carried(key)]

    def write(self, values: Mapping[str, str | None]) -> None:
        """Put values into the URL; None removes a key (its default needs no place there)."""
        for key, value in values.items():
            if value is None:
                self.outgoing.pop(key, None)
            else:
                self.outgoing[key] = value
        current = {key: st.query_params[key] for key in st.query_params}
        if current != self.outgoing:
            st.query_params.from_dict(self.outgoing)
        st.session_state[_SAVED] = dict(self.outgoing)


def clear() -> None:
    """Forget every control: empty the URL (the language stays) and the session's values."""
    lang = st.query_params.get("lang")
    for key in list(st.session_state.keys()):
        del st.session_state[key]
    st.query_params.from_dict({"lang": lang} if lang else {})


def quoted(raw: str, most: int = 40) -> str:
    """Foreign text as code in a note: it must not bring its own markup, nor fill the page."""
    text = " ".join(raw.replace("`", "'").split())
    return text if len(text) <= most else text[: most - 1] + "…"
