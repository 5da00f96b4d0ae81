"""The published numbers: the table whose rows open the planner, and the row that is open."""

from __future__ import annotations

from urllib.parse import urlencode

import streamlit as st

from k3core.capacity.openings import GridView, PlanView
from k3core.capacity.printed import PrintedPool
from k3core.capacity.published import BY_CODE, RECORDS, SUBJECTS
from k3core.figures import capacity as figures
from k3core.studies import capacity as studies
from k3core.ui.controls import Choice
from k3core.ui.navigation import link
from k3core.ui.page import Metric, Page
from k3core.ui.planner.links import SCENE_OF, open_with, row_query

VERDICTS = ("exact", "within-rounding", "not-unique", "published-wrong", "unexplained")
FIRST_COLUMNS = ("open", "published", "computed", "what", "verdict", "source")
View = PlanView | GridView | PrintedPool


def row_banner(page: Page, view: View) -> None:
    """The published value whose link was opened, computed again from the controls as they stand."""
    record = BY_CODE.get(page.query.get("row", ""))
    scene = page.query.get("capacity_scene", "plan")
    if record is None or SCENE_OF[type(record.opening)] != scene:
        return
    computed = record.read(view)
    same = computed == record.computed
    with st.container(border=True, gap="small"):
        st.markdown(
            page.t(
                "row.text",
                id=record.code,
                what=record.what,
                source=f"[{record.source}]({record.link})" if record.link else record.source,
                published=record.published_text,
                computed=record.text_of(computed),
                verdict=page.t(f"option.{studies.VERDICT_CODES[record.verdict]}") if same else "",
            )
        )
        if not same:
            st.markdown(page.t("row.moved", computed=record.computed_text))
        if record.reason:
            st.caption(page.t("row.reason", reason=record.reason))
        if record.inputs:
            st.caption(page.t("row.inputs", inputs=record.inputs_text))
        left, right, _ = st.columns([1, 1, 2])
        if left.button(page.t("row.back"), icon=":material/table_rows:", key="_row_back"):
            open_with(page, {"capacity_scene": "published"})
        if not same and right.button(
            page.t("row.again"), icon=":material/restart_alt:", key="_row_again"
        ):
            open_with(page, row_query(record))
        elif same and right.button(page.t("row.close"), icon=":material/close:", key="_row_close"):
            open_with(page, {k: x for k, x in page.query.items() if k not in ("row", "lang")})


def published_scene(page: Page) -> None:
    """The table of published values, filtered; each row opens the scene that computes it."""
    cells = st.columns(3)
    with cells[0]:
        chosen = page.body_controls(
            Choice("published_subject", "all", "", options=("all", *SUBJECTS))
        )
    with cells[1]:
        verdict = page.body_controls(
            Choice("published_verdict", "all", "", options=("all", *VERDICTS))
        )
    words = cells[2].text_input(page.t("published.search"), key="published_words")
    r = page.study(
        studies.published,
        subject_code=chosen.published_subject,
        verdict=verdict.published_verdict,
        words=words,
    )
    counts = r.tables["counts"].set_index("verdict")["values"]
    agree = int(counts[["exact", "within-rounding", "not-unique"]].sum())
    page.metrics(
        Metric("verdict", page.t("unit.of", part=agree, whole=r.num_records), "derived"),
        Metric("wrong", str(counts["published-wrong"]), "derived"),
        Metric("unexplained", str(counts["unexplained"]), "derived"),
    )
    page.section(
        "published",
        figures.fig_published(r.tables) if len(r.tables["ratios"]) else None,
        columns=1,
        shown=r.num_shown,
        total=len(RECORDS),
    )
    if not r.num_shown:
        st.info(page.t("published.none"))
        return
    table = r.tables["records"].copy()
    table.insert(1, "open", ["?" + urlencode(row_query(BY_CODE[code])) for code in table["id"]])
    table["verdict"] = [page.t(f"option.{code}") for code in table["verdict"]]
    st.dataframe(
        table,
        hide_index=True,
        height=460,
        column_order=(*FIRST_COLUMNS, *(name for name in table if name not in FIRST_COLUMNS)),
        column_config={
            **{name: page.t(f"table.{name}") for name in table if name not in ("open", "thread")},
            "thread": st.column_config.LinkColumn(page.t("table.thread"), display_text=r"(\d+)$"),
            "open": st.column_config.LinkColumn(
                page.t("table.open"), display_text=":material/open_in_new:", width=60
            ),
        },
    )
    st.download_button(
        page.t("download"),
        table.drop(columns="open").to_csv(index=False).encode(),
        file_name="published.csv",
        mime="text/csv",
        on_click="ignore",
    )
    rows = r.tables["records"].set_index("id")
    code = st.selectbox(
        page.t("published.open_row"),
        list(rows.index),
        format_func=lambda c: f"{c} · {rows.at[c, 'source']} · {rows.at[c, 'what']}",
        key="published_row",
    )
    link("capacity", page.lang, row_query(BY_CODE[code]), page.t("published.open"))
