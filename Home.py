"""Home: one memory grows, one does not; three doors; the path of a request. Needs no torch."""

from typing import NamedTuple

import streamlit as st

from k3core import ui
from k3core.capacity.profiles import PROFILES
from k3core.errors import CapacityError
from k3core.figures import home as figures
from k3core.i18n import t
from k3core.studies import home as studies
from k3core.ui.background import background
from k3core.ui.planner import planned_of
from k3core.units import bytes_text, count_text


class Symptom(NamedTuple):
    """A question that opens a page with its controls set: text ``home.symptom.<code>``."""

    code: str
    slug: str
    query: dict[str, str]


SYMPTOMS = (
    Symptom("queue", "capacity", {"mean_tokens": "4096", "draft_len": "0"}),
    Symptom(
        "log_tokens",
        "capacity",
        {
            "pool_rule": "blocks",
            "mean_tokens": "65536",
            "draft_len": "2",
            "rollback_scheme": "snapshots-align",
        },
    ),
    Symptom("drafts_memory", "capacity", {"rollback_scheme": "snapshots"}),
    Symptom("prefix", "prefix_cache", {"prefix_case": "fork"}),
    Symptom("undo", "decode", {"accepted": "2"}),
    Symptom("ring", "replayssm", {"ring_ops": "refill"}),
    Symptom("pages", "paged_cache", {"pool_scene": "life", "pool_scrub": "0"}),
    Symptom("fleet", "fleet", {"fleet_scene": "ring", "vnodes": "8"}),
)
BOOT_LOG = {"draft_len": "0", "mean_tokens": "16384", "rollback_scheme": "snapshots-state-only"}
PATH = (
    "fleet",
    "prefix_cache",
    "paged_cache",
    "parallel",
    "engine",
    "decode",
    "replayssm",
    "capacity",
    "verification",
)

page = ui.frame("home")
v = page.controls(ui.MODEL, ui.TP, ui.STATE_DTYPE, ui.MLA_DTYPE)
r = page.study(studies.two_memories, **vars(v))


def door(slug: str, text: str, query: dict[str, str] | None = None, **values: object) -> None:
    """A link that keeps the reader's model and sets what the target page should show."""
    ui.link(slug, page.lang, page.query | (query or {}), page.t(text, **values))


def requests_of(query: dict[str, str]) -> str:
    """Requests in flight that the planner shows for a query, as that page plans it."""
    try:
        return count_text(planned_of(page.query | query).max_requests)
    except CapacityError:
        return "0"


def two_digits(num_bytes: int) -> str:
    """Like ``bytes_text``, with the second decimal that published figures carry."""
    return f"{num_bytes / 2**20:,.2f} MiB" if num_bytes >= 2**20 else bytes_text(num_bytes)


left, right = st.columns([2, 1], gap="medium")
with left:
    page.metrics(
        ui.Metric("once", two_digits(r.state_bytes_per_request), "derived"),
        ui.Metric("per_token", bytes_text(r.mla_bytes_per_token), "derived"),
        ui.Metric(
            "exchange", page.t("unit.tokens", count=count_text(r.break_even_tokens)), "derived"
        ),
    )
    page.main(figures.main_picture(r.tables), r.tables["growth"][["tokens", "kda", "mla"]])
with right:
    with st.container(border=True, gap="small"):
        st.markdown(f"**{page.t('door.follow')}** · {page.t('door.follow_text')}")
        door("fleet", "door.follow_link")
        door("decode", "door.follow_replay")
    with st.container(border=True, gap="small"):
        st.markdown(f"**{page.t('door.symptom')}**")
        for symptom in SYMPTOMS:
            door(symptom.slug, f"symptom.{symptom.code}", symptom.query)
    with st.container(border=True, gap="small"):
        st.markdown(f"**{page.t('door.log')}** · {page.t('door.log_text')}")
        door("capacity", "door.paste_link", {"capacity_scene": "paste"})
        door("capacity", "door.log_link", BOOT_LOG, requests=requests_of(BOOT_LOG))

st.subheader(page.t("map.title"), anchor="path")
st.caption(page.t("map.about"))
for start in range(0, len(PATH), 3):
    for column, slug in zip(st.columns(3), PATH[start : start + 3], strict=True):
        with column.container(border=True, height="stretch", gap="small"):
            ui.link(slug, page.lang, page.query)
            st.markdown(page.t(f"map.{slug}"))

st.subheader(page.t("verification.title"), anchor="verification")
verification_place = st.container(border=True)

st.subheader(page.t("profile.title"), anchor="sources")
rules = "; ".join(f"{p.engine} {p.version}, {p.date} ({p.source})" for p in PROFILES.values())
st.markdown(
    "\n\n".join(
        (
            page.t("profile.models", model=r.memory.model.title, source=r.memory.model.source),
            page.t("profile.rules", rules=rules),
            page.t("profile.evidence"),
        )
    )
)


def verification_summary() -> None:
    """Counts of the checks and the blind spots, when the thread that runs them has ended."""
    task = background("k3core.studies.verification", "summary")
    if not task.future.done():
        st.caption(page.t("verification.running", seconds=f"{task.elapsed_s:.0f}"))
        return
    if error := task.future.exception():
        st.error(page.t("verification.error", error=str(error)), icon=":material/block:")
        return
    result = task.future.result()
    passed = "green" if result.num_fail == 0 else "red"
    st.markdown(
        f":{passed}-badge[{page.t('verification.passed', passed=result.num_pass)}] "
        f":{'red' if result.num_fail else 'gray'}-badge"
        f"[{page.t('verification.failed', failed=result.num_fail)}] "
        f":green-badge[{page.t('verification.caught', caught=result.num_caught_faults)}]"
    )
    rows = [page.t("verification.header"), "|---|---:|---:|---:|"]
    for fault in result.tables["faults"].itertuples():
        name = t(f"verification.option.{fault.fault}", page.lang)
        rows.append(f"| {name} | {fault.oracle} | {fault.self} | {fault.blind} |")
    st.markdown("\n".join(rows))
    st.caption(page.t("verification.look", rows=result.num_matrix_rows))
    door("verification", "verification.link")
    if polling:
        st.rerun()


ui.prewarm()
polling = not background("k3core.studies.verification", "summary").future.done()
with verification_place:
    st.fragment(verification_summary, run_every=1.0 if polling else None)()
