"""Notes under the title, for example about a URL value that was not usable."""

from __future__ import annotations

import streamlit as st


class Notes:
    """Sentences in one place of the page, which is where this object was made."""

    def __init__(self) -> None:
        self._place = st.empty()
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        """Show ``text`` below the notes before it."""
        self._texts.append(text)
        with self._place.container():
            for entry in self._texts:
                st.warning(entry, icon=":material/link_off:")
