"""The frame that every page shares, and the parts that a page is made of.

A page is: title and idea, metrics, main picture, then sections. ``frame`` opens it; the object
that it returns draws the parts in that order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import altair as alt
import pandas as pd
import streamlit as st

from k3core import i18n
from k3core.figures.style import dress
from k3core.ui import runtime, url
from k3core.ui.cache import cached
from k3core.ui.controls import Choice, Control, resolve
from k3core.ui.navigation import PAGES, link

_STYLE = """<style>
[data-testid="stMainBlockContainer"] {padding-top: 2.6rem; padding-bottom: 3rem;}
[data-testid="stMetricValue"] {font-size: 1.55rem;}
.st-key-stale {opacity: 0.45;}
</style>"""


class Metric(NamedTuple):
    """One number at the top of a page.

    Attributes:
        name: the text ``<slug>.metric.<name>`` labels it, ``<slug>.metric.<name>_help`` explains.
        value: the number as people read it, with its unit.
        evidence: ``live`` (computed now), ``derived`` (formula shown) or ``published``.
        delta: optional comparison, shown small below the value.
    """

    name: str
    value: str
    evidence: str = "live"
    delta: str | None = None


class _Unchecked(NamedTuple):
    """A chart whose specification is built without the schema check, which costs half the time.

    The tests check the schema of every figure.
    """

    chart: Any

    def to_dict(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.chart.to_dict(validate=False)
        return spec


class Page:
    """One run of one page."""

    def __init__(self, slug: str, lang: str, state: url.UrlState, nav: Any) -> None:
        self.slug = slug
        self.lang = lang
        self.dark = st.context.theme.type == "dark"
        self._url = state
        self._nav = nav
        self._values: dict[str, Any] = {}
        self._notes: list[str] = []
        self._note_place: Any = None
        self._stale = False

    # ---- words -------------------------------------------------------------------------------

    def t(self, key: str, **values: object) -> str:
        """Text ``<slug>.<key>``, or ``common.<key>`` when the page has none of its own."""
        own = f"{self.slug}.{key}"
        key = own if i18n.has_text(own, self.lang) else f"common.{key}"
        if not i18n.has_text(key, self.lang):
            key = own
        return i18n.t(key, self.lang, **values)

    def has_text(self, key: str) -> bool:
        """Whether ``<slug>.<key>`` is in the catalogue."""
        return i18n.has_text(f"{self.slug}.{key}", self.lang)

    # ---- controls ----------------------------------------------------------------------------

    def controls(self, *specs: Control) -> SimpleNamespace:
        """Draw controls in the sidebar; returns their values as attributes by key.

        Values come from the URL after a link, reload, Back or Forward, else from the widgets.
        A control whose default follows other controls (a preset) takes the new default whenever
        that default changes; a value moved away from it makes the chip say "custom, from ...".
        """
        with st.sidebar:
            values = self._draw(specs)
            followers = [spec for spec in specs if callable(spec.default)]
            moved = [s.key for s in followers if values[s.key] != resolve(s.default, self._values)]
            if followers and "model" in values:
                model = self.t(f"option.{values['model']}")
                if moved:
                    st.badge(self.t("chip.custom", model=model), color="orange")
                else:
                    st.badge(self.t("chip.preset", model=model), color="gray")
            if st.button(self.t("reset"), key="_reset", icon=":material/restart_alt:"):
                url.clear()
                st.rerun()
        return SimpleNamespace(**values)

    def choice(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        """A segmented control in the page's body (a scene), kept in the URL."""
        spec = Choice(key, default or options[0], options=tuple(options), style="segments")
        return str(self._draw([spec])[key])

    def preset(self, key: str, options: Sequence[str], followers: Sequence[Control]) -> str:
        """A choice in the body that, when the reader changes it, resets the controls it fills.

        Draw it before ``followers``, whose defaults are functions of its value. A link, Back or
        Forward resets nothing: it says itself where each control stands.
        """
        chosen, remembered = self.choice(key, options), f"_preset_{key}"
        moved = st.session_state.get(remembered, chosen) != chosen
        st.session_state[remembered] = chosen
        if moved and not self._url.changed:
            for spec in followers:
                st.session_state.pop(spec.key, None)
                self._url.incoming.pop(spec.key, None)
                self._url.outgoing.pop(spec.key, None)
        return chosen

    def body_controls(self, *specs: Control) -> SimpleNamespace:
        """Like ``controls``, drawn where the page stands now (one scene's own knobs)."""
        return SimpleNamespace(**self._draw(specs))

    def _draw(self, specs: Sequence[Control]) -> dict[str, Any]:
        values = self._values
        drawn: dict[str, Any] = {}
        outgoing: dict[str, str | None] = {}
        group = ""
        for spec in specs:
            default = resolve(spec.default, values)
            value = self._start_value(spec, default)
            if not spec.shown(values):
                values[spec.key] = drawn[spec.key] = value
                continue
            if spec.group and spec.group != group:
                group = spec.group
                st.markdown(f"**{self.t(f'group.{group}')}**")
            st.session_state[spec.key] = value
            help_key = f"control.{spec.key}_help"
            help_text = self.t(help_key)
            shown = spec.draw(
                self.t(f"control.{spec.key}"),
                None if help_text.startswith("⟦") else help_text,
                self._option_text,
                values,
            )
            values[spec.key] = drawn[spec.key] = shown
            outgoing[spec.key] = None if shown == default else spec.to_url(shown)
        self._sync(outgoing)
        return drawn

    def _start_value(self, spec: Control, default: Any) -> Any:
        values, followed = self._values, f"_default_{spec.key}"
        default_moved = followed in st.session_state and st.session_state[followed] != default
        st.session_state[followed] = default
        raw = self._url.incoming.get(spec.key)
        if self._url.changed or (spec.key not in st.session_state and raw is not None):
            if raw is None:
                return spec.fit(default, values)
            try:
                return spec.parse(raw, values)
            except ValueError:
                fallback = spec.fit(default, values)
                name = self.t(f"control.{spec.key}")
                self.note(self.t("bad_url_value", name=name, raw=_quoted(raw), value=fallback))
                return fallback
        if default_moved or spec.key not in st.session_state:
            return spec.fit(default, values)
        return spec.fit(st.session_state[spec.key], values)

    def _option_text(self, code: str) -> str:
        text = self.t(f"option.{code}")
        return code if text.startswith("⟦") else text

    def _sync(self, outgoing: Mapping[str, str | None]) -> None:
        self._url.write(outgoing)
        with self._nav.container():
            for page in PAGES:
                link(page.slug, self.lang, self._url.outgoing)

    @property
    def query(self) -> dict[str, str]:
        """The query string of this page as it stands now."""
        return dict(self._url.outgoing)

    # ---- running studies ---------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Show a note under the title (for example a URL value that was not usable)."""
        self._notes.append(text)
        if self._note_place is not None:
            with self._note_place.container():
                for entry in self._notes:
                    st.warning(entry, icon=":material/link_off:")

    def study(self, study: Callable[..., Any], **params: Any) -> Any:
        """Run a study through its cache; bad input becomes an error with its remedy.

        After an error the page goes on with the last parameters that worked, its pictures dimmed;
        without any it stops there.
        """
        good = f"_good_{self.slug}_{study.__name__}"
        try:
            with st.spinner(self.t("running"), show_time=True):
                result = cached(study)(**params)
        except ValueError as error:
            st.error(self.t("bad_input", error=str(error)), icon=":material/block:")
            if good not in st.session_state:
                st.stop()
            self._stale = True
            return cached(study)(**st.session_state[good])
        st.session_state[good] = params
        return result

    def mark_stale(self) -> None:
        """What follows shows earlier parameters: dim its pictures."""
        self._stale = True

    # ---- parts of a page -----------------------------------------------------------------------

    def metrics(self, *metrics: Metric) -> None:
        """The row of numbers that answers the page's question."""
        for column, metric in zip(st.columns(len(metrics)), metrics, strict=True):
            help_key = f"metric.{metric.name}_help"
            parts = [self.t(help_key)] if self.has_text(help_key) else []
            parts.append(self.t(f"evidence.{metric.evidence}_help"))
            column.metric(
                f"{self.t(f'metric.{metric.name}')} "
                f":gray[· {self.t(f'evidence.{metric.evidence}')}]",
                metric.value,
                metric.delta,
                delta_color="off",
                delta_arrow="off",
                help="\n\n".join(parts),
            )

    def chart(self, chart: Any, key: str, *, title: bool = True, **options: Any) -> Any:
        """Draw one chart in the reader's language and theme.

        The chart's title becomes text above it, so that it wraps on a phone.
        """
        caption = chart._get("title")
        chart.title = alt.Undefined
        if title and isinstance(caption, str):
            text = i18n.t(caption, self.lang)
            st.markdown(f"**{text}**")
        else:
            text = self.t("title")
        dressed = dress(chart, self.slug, self.lang, self.dark)
        return st.altair_chart(
            cast("alt.Chart", _Unchecked(dressed)),
            width="stretch",
            key=f"{self.slug}_{key}",
            alt=text,
            **options,
        )

    def main(
        self,
        chart: Any,
        table: pd.DataFrame | None = None,
        *,
        pick: str | None = None,
        **values: object,
    ) -> None:
        """The main picture across the page, the sentence that reads it, and its data.

        Args:
            pick: key of a control that a click on a mark sets: the chart has a point selection of
                that name over a field that holds the control's codes.
        """
        options = {"on_select": "rerun", "selection_mode": pick} if pick else {}
        with self._dimmed("main"):
            event = self.chart(chart, "main", title=False, **options)
        if pick:
            self._picked(pick, event.selection.get(pick) or [])
        if self.has_text("main.look"):
            st.caption(self.t("main.look", **values))
        if table is not None:
            with st.expander(self.t("data")):
                self.data(table, "main")

    def _picked(self, key: str, marks: Sequence[Mapping[str, Any]]) -> None:
        """Give a freshly clicked mark's code to the control ``key`` through the URL."""
        code = next((str(code) for mark in marks for code in mark.values()), None)
        memory = f"_picked_{self.slug}"
        if code == st.session_state.get(memory):
            return
        st.session_state[memory] = code
        if code is not None and code != self._values.get(key):
            st.query_params[key] = code
            st.rerun()

    def section(
        self,
        name: str,
        panels: Mapping[str, Any] | None = None,
        *,
        columns: int = 2,
        formula: str | Sequence[str] | None = None,
        tables: Mapping[str, pd.DataFrame] | None = None,
        expanded: bool = True,
        **values: object,
    ) -> None:
        """One section: finding as heading, pictures, two sentences, an expander with the rest.

        Texts: ``<slug>.<name>.title`` (the finding), ``.look`` (what to look at), ``.wrong`` (what
        would be wrong), ``.about`` (optional, before the pictures); ``values`` fill their fields.

        Args:
            panels: named charts; each becomes a cell of a grid of ``columns`` columns.
            formula: LaTeX with the current numbers substituted.
            tables: the data behind the pictures.
            expanded: False folds the pictures into an expander of their own.
        """
        st.subheader(self.t(f"{name}.title", **values), anchor=name.replace("_", "-"))
        if self.has_text(f"{name}.about"):
            st.markdown(self.t(f"{name}.about", **values))
        if panels:
            place = st.container() if expanded else st.expander(self.t("pictures"))
            with place, self._dimmed(name):
                self.grid(name, panels, columns)
        if self.has_text(f"{name}.look"):
            st.markdown(self.t(f"{name}.look", **values))
        wrong = self.has_text(f"{name}.wrong")
        if formula or tables or wrong:
            with st.expander(self.t("details")):
                for line in [formula] if isinstance(formula, str) else formula or []:
                    st.latex(line)
                if wrong:
                    st.markdown(
                        f"**{self.t('would_be_wrong')}** {self.t(f'{name}.wrong', **values)}"
                    )
                for table_name, table in (tables or {}).items():
                    self.data(table, f"{name}_{table_name}")

    def grid(self, name: str, panels: Mapping[str, Any], columns: int = 2) -> None:
        """Charts side by side on a desktop, stacked on a phone."""
        items = list(panels.items())
        for start in range(0, len(items), columns):
            row = items[start : start + columns]
            cells = st.columns(columns) if columns > 1 else [st.container()]
            for cell, (panel, chart) in zip(cells, row, strict=False):
                with cell:
                    self.chart(chart, f"{name}_{panel}")

    def data(self, table: pd.DataFrame, name: str) -> None:
        """A table with its download."""
        st.dataframe(table, hide_index=True, height=min(38 + 35 * len(table), 320))
        st.download_button(
            self.t("download"),
            table.to_csv(index=False).encode(),
            file_name=f"{self.slug}_{name}.csv",
            mime="text/csv",
            key=f"_download_{self.slug}_{name}",
            on_click="ignore",
        )

    def words(self, **values: object) -> None:
        """Problem, difficulty and reason of the mechanism, then where the evidence comes from.

        ``values`` fill the fields of the texts: numbers are computed, never typed.
        """
        st.subheader(self.t("why.title"), anchor="why")
        for column, part in zip(st.columns(3), ("problem", "hard", "reason"), strict=True):
            column.markdown(f"**{self.t(f'why_{part}')}**\n\n{self.t(f'why.{part}', **values)}")
        st.caption(f"{self.t('sources_label')} {self.t('why.sources')}")

    @contextmanager
    def _dimmed(self, name: str) -> Iterator[None]:
        with st.container(key=f"stale_{self.slug}_{name}" if self._stale else None):
            yield


def frame(slug: str) -> Page:
    """Open a page: configuration, title and idea, navigation, language.

    Args:
        slug: name of the page's catalogue and subsystem (``decode``, ``fleet``, ``home`` ...).
    """
    state = url.UrlState()
    lang = state.incoming.get("lang", i18n.DEFAULT_LANGUAGE)
    known = lang in i18n.languages()
    lang = lang if known else i18n.DEFAULT_LANGUAGE
    name = i18n.t(f"common.page.{slug}", lang)
    st.set_page_config(
        page_title=f"{name} · {i18n.t('common.product', lang)}" if slug != "home" else name,
        page_icon="🧮",
        layout="wide",
    )
    st.html(_STYLE)
    with st.sidebar:
        st.markdown(f"### {i18n.t('common.product', lang)}")
        nav = st.empty()
    page = Page(slug, lang, state, nav)
    page._sync({})
    if len(i18n.languages()) > 1:
        with st.sidebar:
            spec = Choice("lang", i18n.DEFAULT_LANGUAGE, options=i18n.languages(), style="segments")
            if page._draw([spec])["lang"] != lang:
                st.rerun()
    st.title(page.t("title"), anchor=False)
    st.markdown(page.t("idea"))
    page._note_place = st.empty()
    if not known:
        page.note(page.t("bad_language", raw=_quoted(state.incoming["lang"])))
    runtime_ready(slug)
    return page


def _quoted(raw: str) -> str:
    """A URL value as code in a note: a link must not bring its own markup, nor fill the page."""
    text = " ".join(raw.replace("`", "'").split())
    return text if len(text) <= 40 else text[:39] + "…"


def runtime_ready(slug: str) -> None:
    """Load torch in the background from Home; on the other pages the study has loaded it."""
    if slug != "home":
        runtime.prewarm()


def query_json(query: Mapping[str, str]) -> str:
    """A query as one line, for downloads that must say what made them."""
    return json.dumps(dict(sorted(query.items())), ensure_ascii=False)
