"""Page 9: every claim as a check that runs now, and which check sees which fault."""

from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from k3core import ui
from k3core.figures import verification as figures
from k3core.studies import verification as studies
from k3core.ui.tables import Wide
from k3core.units import error_text, percent_text

page = ui.frame("verification")
v = page.controls(
    ui.Choice(
        "check_keys", "correlated", "checks", options=("correlated", "random"), style="radio"
    ),
    ui.Choice("check_dtype", "float64", "checks", options=("float64", "float32"), style="radio"),
    ui.SEED,
)
fault = page.choice("fault", studies.FAULT_CODES)
st.caption(page.t(f"fault.{fault}"))
inputs = {"seed": v.seed, "correlated": v.check_keys == "correlated", "dtype": v.check_dtype}
matrix = page.study(studies.fault_matrix, **inputs)
others = page.study(studies.read_other_checks, fault=fault, **inputs)
run = studies.verdicts(matrix.columns[others.fault], others)

num_rows = matrix.num_rows
num_cells = num_rows * matrix.num_faults
healthy = run.fault == studies.HEALTHY
page.metrics(
    ui.Metric("passed", f"{run.num_pass} / {run.num_checks}"),
    ui.Metric("failed", f"{run.num_fail}"),
    ui.Metric("caught", f"{matrix.num_caught_faults} / {matrix.num_faults}"),
    ui.Metric(
        "blind",
        f"{matrix.count('blind')} / {num_cells}"
        if healthy
        else f"{len(run.ids('blind'))} / {num_rows}",
    ),
)
tables = {**matrix.tables, "selected": run.tables["selected"]}
if healthy:
    page.main(figures.main_picture(tables), matrix.tables["cells"])
else:
    left, right = st.columns([5, 7])
    with left:
        page.chart(figures.fig_break_it(tables)["dots"], "dots", title=False)
        st.caption(page.t("dots.look"))
    with right:
        page.main(figures.main_picture(tables), matrix.tables["cells"])

page.section(
    "rows", passed=run.num_pass, checks=run.num_checks, fault=page.t(f"option.{run.fault}")
)
shown = page.choice("check_rows", ("all", "source_text", "invariants", "failed", "blind"))
checks = run.tables["checks"]
checks = checks[
    {
        "all": checks["id"].notna(),
        "source_text": checks["source_text"],
        "invariants": ~checks["source_text"],
        "failed": checks["verdict"] == "fail",
        "blind": checks["outcome"] == "blind",
    }[shown]
]
if checks.empty:
    st.caption(page.t("rows.none"))
else:
    urls = {entry.slug: entry.path.removesuffix(".py").partition("_")[2] for entry in ui.PAGES}
    query = urlencode(page.query)
    words = {
        "verdict": [page.t(f"label.{code}") for code in checks["verdict"]],
        "measured": [error_text(value) for value in checks["deviation"]],
        "tolerance": [error_text(value) for value in checks["tolerance"]],
        "claim": [page.t(f"check.{row}") for row in checks["id"]],
        "page": [page.t(f"label.{slug}") for slug in checks["page"]],
        "open": [f"{urls[slug]}?{query}" for slug in checks["page"]],
        "usual": ["✓" if usual else "" for usual in checks["usual"]],
        "outcome": [
            "" if code in ("pass", "fail") else page.t(f"label.{code}")
            for code in checks["outcome"]
        ],
        "counted": [
            studies.counts_text(*pair)
            for pair in zip(checks["seen"], checks["expected"], strict=True)
        ],
        "kind": [page.t(f"label.{code}") for code in checks["kind"]],
        "id": checks["id"].tolist(),
    }
    columns = {name: st.column_config.TextColumn(page.t(f"rows.{name}")) for name in words}
    columns["open"] = st.column_config.LinkColumn(
        page.t("rows.open"), display_text=":material/open_in_new:"
    )
    st.dataframe(
        pd.DataFrame(words),
        hide_index=True,
        height=min(38 + 35 * len(checks), 460),
        column_config=columns,
    )
with st.expander(page.t("details")):
    st.markdown(f"**{page.t('would_be_wrong')}** {page.t('rows.red_flag')}")
    page.data(Wide(run.tables["checks"], ("id", "verdict", "deviation", "tolerance")), "checks")

blind_self = matrix.num_self_blind("undecayed_delta")
charts = figures.fig_blind_spots(matrix.tables)
page.section(
    "blind",
    {"by_fault": charts["by_fault"]},
    columns=1,
    tables={"faults": matrix.tables["faults"]},
    blind_self=blind_self,
    self_rows=matrix.num_self_rows,
)
keys = page.study(studies.key_sweep, seed=v.seed)
cells = matrix.tables["cells"].set_index(["check", "fault"])["value"]
page.section(
    "usual",
    {"usual": charts["usual"], **figures.fig_keys(keys.tables)},
    formula=[
        r"S_t = (I - \beta k k^\top)\,\mathrm{Diag}(e^{g})\,S_{t-1} + \beta k v^\top",
        r"\text{undecayed: } (\mathrm{Diag}(e^{g}) - \beta k k^\top)\,S_{t-1} + \beta k v^\top,"
        r"\quad \frac{\lVert \Delta \rVert}{\lVert \cdot \rVert} = "
        rf"{cells['recurrence_matches_oracle_random_keys', 'undecayed_delta']:.3f},\ "
        rf"{cells['recurrence_matches_oracle_correlated_keys', 'undecayed_delta']:.3f}",
    ],
    tables={"cells": matrix.tables["cells"], **keys.tables},
    usual=matrix.num_usual,
    caught=matrix.count("caught"),
    random=percent_text(keys.error_random),
    repeated=percent_text(keys.error_repeated),
)
page.words(
    blind_self=blind_self,
    self_rows=matrix.num_self_rows,
    usual=matrix.num_usual,
    caught=matrix.count("caught"),
    all_seeing=matrix.num_all_seeing,
    rows=num_rows,
    faults=matrix.num_faults,
)
