"""The controls of one run: drawn under the headings of their groups, their values in the URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import streamlit as st

from k3core.ui.controls import Control, resolve
from k3core.ui.navigation import PAGES, link
from k3core.ui.texts import Texts
from k3core.ui.url import UrlState, quoted


class Form:
    """Draws controls and keeps what they stand at.

    Attributes:
        values: what each control drawn so far stands at, by key.
        url: the query of this run.
    """

    def __init__(
        self, texts: Texts, url: UrlState, links: Any, note: Callable[[str], None]
    ) -> None:
        """``links``: place of the page list; ``note``: shows a sentence under the title."""
        self.values: dict[str, Any] = {}
        self.url = url
        self._texts = texts
        self._links = links
        self._note = note

    def draw(self, specs: Sequence[Control]) -> dict[str, Any]:
        """Draw controls where the page stands; the controls of one group stand together.

        Values come from the URL after a link, reload, Back or Forward, else from the widgets.
        """
        drawn: dict[str, Any] = {}
        outgoing: dict[str, str | None] = {}
        groups: dict[str, Any] = {}
        place: Any = nullcontext()
        for spec in specs:
            default = resolve(spec.default, self.values)
            value = self._start_value(spec, default)
            if not spec.shown(self.values):
                self.values[spec.key] = drawn[spec.key] = value
                continue
            if spec.group:
                if spec.group not in groups:
                    groups[spec.group] = st.container()
                    heading = self._texts.t(f"group.{spec.group}")
                    groups[spec.group].markdown(f"**{heading}**")
                place = groups[spec.group]
            with place:
                shown = self._draw_one(spec, value)
                self.values[spec.key] = drawn[spec.key] = shown
                if shown == default and self._belongs_elsewhere(spec):
                    if not callable(spec.default):
                        st.caption(self._elsewhere(spec, shown))
                    st.session_state[f"_elsewhere_{spec.key}"] = True
                    continue  # the URL keeps it for the page that offers it
            outgoing[spec.key] = None if shown == default else spec.to_url(shown)
        self.sync(outgoing)
        return drawn

    def _draw_one(self, spec: Control, value: Any) -> Any:
        st.session_state[spec.key] = value
        return spec.draw(
            self._texts.t(f"control.{spec.key}"),
            self._texts.optional(f"control.{spec.key}_help"),
            self._texts.option,
            self.values,
        )

    def _start_value(self, spec: Control, default: Any) -> Any:
        followed, elsewhere = f"_default_{spec.key}", f"_elsewhere_{spec.key}"
        default_moved = followed in st.session_state and st.session_state[followed] != default
        st.session_state[followed] = default
        raw, fresh = self.url.incoming.get(spec.key), spec.key not in st.session_state
        back = st.session_state.pop(elsewhere, False)  # the last run could not show the URL's value
        if self.url.changed or (raw is not None and (fresh or back)):
            fallback = spec.fit(default, self.values)
            if raw is None:
                return fallback
            try:
                return spec.parse(raw, self.values)
            except ValueError:
                if not self.url.carried(spec.key):
                    self._complain(spec, raw, fallback)
                if self.url.changed or fresh:
                    return fallback
        if default_moved or fresh:
            return spec.fit(default, self.values)
        return spec.fit(st.session_state[spec.key], self.values)

    def _complain(self, spec: Control, raw: str, fallback: Any) -> None:
        name, value = self._texts.t(f"control.{spec.key}"), self._texts.option(fallback)
        self._note(self._texts.t("bad_url_value", name=name, raw=quoted(raw), value=value))

    def _belongs_elsewhere(self, spec: Control) -> bool:
        """Whether the reader brought a value from another page that this one does not offer."""
        if not self.url.carried(spec.key):
            return False
        try:
            spec.parse(self.url.incoming[spec.key], self.values)
        except ValueError:
            return True
        return False

    def _elsewhere(self, spec: Control, shown: Any) -> str:
        raw = self.url.incoming[spec.key]
        return self._texts.t("elsewhere", raw=quoted(raw), value=self._texts.option(shown))

    def forget(self, specs: Sequence[Control]) -> None:
        """Let controls start again at their defaults when they are drawn next."""
        for spec in specs:
            st.session_state.pop(spec.key, None)
            self.url.incoming.pop(spec.key, None)
            self.url.outgoing.pop(spec.key, None)

    def sync(self, values: Mapping[str, str | None]) -> None:
        """Write values to the URL (None removes a key) and renew the links that carry it."""
        self.url.write(values)
        with self._links.container():
            for page in PAGES:
                link(page.slug, self._texts.lang, self.url.outgoing)
