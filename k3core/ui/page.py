"""The parts that a page is made of: controls, metrics, main picture, sections, words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import altair as alt
import pandas as pd
import streamlit as st

from k3core import i18n
from k3core.figures.style import dress
from k3core.ui.cache import cached
from k3core.ui.controls import Choice, Control, resolve
from k3core.ui.form import Form
from k3core.ui.notes import Notes
from k3core.ui.tables import Wide, show
from k3core.ui.texts import Texts
from k3core.ui.url import clear


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

    def __init__(self, texts: Texts, form: Form, notes: Notes) -> None:
        self.slug, self.lang = texts
        self.dark = st.context.theme.type == "dark"
        self._texts = texts
        self._form = form
        self._notes = notes
        self._stale = False

    # ---- words -------------------------------------------------------------------------------

    def t(self, key: str, **values: object) -> str:
        """Text ``<slug>.<key>``, or ``common.<key>`` when the page has none of its own."""
        return self._texts.t(key, **values)

    def has_text(self, key: str) -> bool:
        """Whether ``<slug>.<key>`` is in the catalogue."""
        return self._texts.has_own(key)

    # ---- controls ----------------------------------------------------------------------------

    def controls(self, *specs: Control) -> SimpleNamespace:
        """Draw controls in the sidebar; returns their values as attributes by key.

        A control whose default follows other controls (a preset) takes the new default whenever
        that default changes; a value moved away from it makes the chip say "custom, from ...".
        """
        with st.sidebar:
            values = self._form.draw(specs)
            followers = [spec for spec in specs if callable(spec.default)]
            known = self._form.values
            moved = [s.key for s in followers if values[s.key] != resolve(s.default, known)]
            if followers and "model" in values:
                model = self.t(f"option.{values['model']}")
                if moved:
                    st.badge(self.t("chip.custom", model=model), color="orange")
                else:
                    st.badge(self.t("chip.preset", model=model), color="gray")
            if st.button(self.t("reset"), key="_reset", icon=":material/restart_alt:"):
                clear()
                st.rerun()
        return SimpleNamespace(**values)

    def choice(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        """A segmented control in the page's body (a scene), kept in the URL."""
        spec = Choice(key, default or options[0], options=tuple(options), style="segments")
        return str(self._form.draw([spec])[key])

    def preset(self, key: str, options: Sequence[str], followers: Sequence[Control]) -> str:
        """A choice in the body that, when the reader changes it, resets the controls it fills.

        Draw it before ``followers``, whose defaults are functions of its value. A link, Back or
        Forward resets nothing: it says itself where each control stands.
        """
        chosen, remembered = self.choice(key, options), f"_preset_{key}"
        moved = st.session_state.get(remembered, chosen) != chosen
        st.session_state[remembered] = chosen
        if moved and not self._form.url.changed:
            self._form.forget(followers)
        return chosen

    def body_controls(self, *specs: Control) -> SimpleNamespace:
        """Like ``controls``, drawn where the page stands now (one scene's own knobs)."""
        return SimpleNamespace(**self._form.draw(specs))

    @property
    def query(self) -> dict[str, str]:
        """The query string of this page as it stands now."""
        return dict(self._form.url.outgoing)

    # ---- running studies ---------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Show a note under the title (for example a URL value that was not usable)."""
        self._notes.add(text)

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
        table: pd.DataFrame | Wide | None = None,
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
        if code is not None and code != self._form.values.get(key):
            st.query_params[key] = code
            st.rerun()

    def section(
        self,
        name: str,
        panels: Mapping[str, Any] | None = None,
        *,
        columns: int = 2,
        formula: str | Sequence[str] | None = None,
        tables: Mapping[str, pd.DataFrame | Wide] | None = None,
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

    def data(self, table: pd.DataFrame | Wide, name: str) -> None:
        """A table with its download."""
        table, first = table if isinstance(table, Wide) else (table, None)
        show(table, self._texts, first)
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
