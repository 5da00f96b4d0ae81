"""Page 3: two kinds of memory in the pages of one pool."""

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from k3core import ui
from k3core.capacity.presets import PRESETS
from k3core.figures import paged_cache as figures
from k3core.studies import paged_cache as studies
from k3core.ui.tables import Wide, narrow
from k3core.units import bytes_text, count_text, error_text, percent_text
from k3core.units import tex_number as num

HEAD_SIZES = (16, 32, 64, 128)
RANKS = (1, 2, 4, 8, 16)
MAX_HEADS = 128  # of all ranks
SCENES = ("sizes", "life")


def size_options(values: Any) -> dict[str, Any]:
    """The controls that decide the sizes, as arguments of every study."""
    return {
        **{name: values[name] for name in ("model", "tp", "state_dtype", "mla_dtype")},
        "heads": values["pool_heads"],
        "dk": values["pool_dk"],
        "dv": values["pool_dv"],
        "tokens_per_page": values.get("pool_tokens_per_page", 512),
    }


def offered(choose: Callable[..., Any], *keys: str) -> Callable[[Any], Any]:
    """A bound, default or options of a control: what goes with the controls so far."""
    return lambda values: choose(
        studies.request_sizes(**size_options(values)), *(values[key] for key in keys)
    )


LONGEST = ("pool_kda_layers", "pool_seq_len")


COLUMNS = {  # of the tables that are too wide for a phone
    "stays": ("page", "start", "stop", "place", "owner"),
    "break_even": ("measure", "length", "pages"),
    "fill": ("page", "tokens"),
    "heads": ("side", "rank", "first", "stop"),
    "formats": ("dtype", "different", "pages", "bytes"),
    "order": ("place_in_line", "page", "kind", "part"),
    "evictions": ("number", "page", "kind", "part"),
    "by_step": ("step", "line", "pages"),
    "map": ("design", "first_page", "stop", "kind"),
    "rows": ("pool", "row", "status"),
    "readers": ("direction", "pool", "wrong_values"),
}


def data(tables: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """All tables, or the named ones, with the columns that fit a phone."""
    return narrow({name: tables[name] for name in names or tables}, COLUMNS)


page = ui.frame("paged_cache")
v = page.controls(
    ui.MODEL,
    ui.TP,
    ui.STATE_DTYPE,
    ui.MLA_DTYPE,
    ui.Slider(
        "pool_heads",
        lambda values: PRESETS[values["model"]].heads_per_rank(values["tp"]),
        "state",
        low=1,
        high=lambda values: MAX_HEADS // values["tp"],
    ),
    ui.Steps("pool_dk", lambda values: PRESETS[values["model"]].dk, "state", options=HEAD_SIZES),
    ui.Steps("pool_dv", lambda values: PRESETS[values["model"]].dv, "state", options=HEAD_SIZES),
    ui.Slider("pool_requests", 6, "load", low=1, high=8),
    ui.Steps("pool_seq_len", 4096, "load", options=(512, 1024, 2048, 4096, 6144, 8192, 16384)),
    ui.Slider(
        "pool_kda_layers",
        3,
        "load",
        low=1,
        high=offered(studies.most_layers, "pool_seq_len"),
    ),
    ui.Steps("pool_tokens_per_page", 512, "pages", options=offered(studies.page_choices, *LONGEST)),
    ui.Steps(
        "pool_pages",
        offered(studies.usual_pool, *LONGEST),
        "pages",
        options=offered(studies.pool_choices, *LONGEST),
    ),
    ui.Choice("pool_keep", "cached", "pages", options=("cached", "dropped"), style="segments"),
    ui.Toggle("pool_scrub", True, "pages"),
)
sizes = size_options(vars(v))
run = page.study(
    studies.run_pool,
    **sizes,
    kda_layers=v.pool_kda_layers,
    pool_pages=v.pool_pages,
    num_requests=v.pool_requests,
    seq_len=v.pool_seq_len,
    keep=v.pool_keep,
    scrub=v.pool_scrub,
)
stale = None if v.pool_scrub else page.study(studies.stale_bytes, **sizes)
outputs = stale.wrong_outputs if stale else {}
top = st.container()
head = page.body_controls(ui.Slider("pool_step", 13, "", low=0, high=run.num_steps - 1))
now = run.at(head.pool_step)
with top:
    page.metrics(
        ui.Metric(
            "slab",
            page.t("unit.pages", count=run.slab_pages),
            "live",
            page.t("unit.slab", layers=run.num_kda_layers, pages=run.pages_per_layer),
        ),
        ui.Metric(
            "mla",
            page.t("unit.pages", count=now.num_mla),
            "live",
            page.t("unit.running", count=now.num_running),
        ),
        ui.Metric(
            "available",
            page.t("unit.pages", count=now.num_cached + now.num_free),
            "live",
            page.t("unit.available", cached=now.num_cached, free=now.num_free),
        ),
        ui.Metric(
            "leaked",
            bytes_text(run.stale_bytes),
            "live",
            page.t("unit.wrong", **outputs)
            if outputs
            else page.t("unit.changes", count=run.num_retyped),
        ),
    )
page.main(
    figures.main_picture({**run.tables, "playhead": now.playhead}),
    Wide(run.tables["stays"], COLUMNS["stays"]),
    layers=run.num_kda_layers,
    last=run.tables["requests"]["request"].iloc[-1],
    chunk=count_text(studies.CHUNK_TOKENS),
    page=bytes_text(run.sizes.page_bytes),
    written=bytes_text(run.bytes_written),
    wrong=run.num_wrong,
    next_owner=page.t("main.next_owner", **outputs) if outputs else "",
)

memory = run.sizes.memory
model = memory.model
scene = page.choice("pool_scene", SCENES)


def draw_sizes() -> None:
    """Pages by length, rows in pages, states in pages."""
    length = page.study(
        studies.lengths,
        **sizes,
        kda_layers=v.pool_kda_layers,
        pool_pages=v.pool_pages,
        seq_len=v.pool_seq_len,
    )
    page.section(
        "length",
        figures.fig_page_pool(length.tables),
        columns=3,
        formula=[
            rf"\text{{MLA}} = {model.num_mla_layers} \cdot \left\lceil "
            rf"\tfrac{{{num(v.pool_seq_len)}}}{{{num(v.pool_tokens_per_page)}}} \right\rceil "
            rf"= {num(length.num_mla_pages)}"
            r"\ \text{pages}",
            rf"\text{{KDA}} = {model.num_kda_layers} \cdot \left\lceil "
            rf"\tfrac{{{num(run.sizes.kda_bytes)}}}{{{num(run.sizes.page_bytes)}}} \right\rceil"
            rf" = {num(length.num_kda_pages)}"
            r"\ \text{pages}",
            rf"L^{{*}} = \tfrac{{{model.num_kda_layers} \cdot {num(run.sizes.kda_bytes)}}}"
            rf"{{{model.num_mla_layers} \cdot {num(run.sizes.row_bytes)}}}"
            rf" = {num(round(memory.break_even_len, 1))}\ \text{{tokens}}",
        ],
        tables=data(length.tables, "by_length", "break_even"),
        tokens=count_text(memory.break_even_tokens),
        pages_tokens=count_text(length.sizes.break_even_tokens),
        mla=count_text(length.num_mla_pages),
        kda=count_text(length.num_kda_pages),
        length=count_text(v.pool_seq_len),
        layers=v.pool_kda_layers,
        mla_drawn=count_text(length.num_drawn("mla")),
        kda_drawn=count_text(length.num_drawn("kda")),
        model=page.t(f"option.{v.model}"),
        tp=v.tp,
    )
    knobs = page.body_controls(
        ui.Slider("pool_append", 600, low=1, high=4096),
        ui.Steps(
            "pool_to_tp",
            4,
            options=lambda values: tuple(
                ranks for ranks in RANKS if values["pool_heads"] * values["tp"] % ranks == 0
            ),
        ),
    )
    paging = page.study(
        studies.paging, **sizes, num_tokens=knobs.pool_append, to_tp=knobs.pool_to_tp
    )
    page.section(
        "paging",
        figures.fig_mla_paging(paging.tables),
        columns=3,
        formula=rf"\left\lceil \tfrac{{{num(knobs.pool_append)}}}{{{num(v.pool_tokens_per_page)}}} "
        rf"\right\rceil = {paging.num_pages},\quad {num(knobs.pool_append)} - "
        rf"{paging.num_pages - 1} \cdot {num(v.pool_tokens_per_page)} = {num(paging.last_fill)}",
        tables=data(paging.tables, "fill", "heads"),
        tokens=count_text(knobs.pool_append),
        pages=paging.num_pages,
        last=count_text(paging.last_fill),
        tp=v.tp,
        to_tp=knobs.pool_to_tp,
        difference=error_text(paging.max_difference),
    )
    stored = page.study(studies.store, **sizes)
    page.section(
        "store",
        figures.fig_kda_store(stored.tables),
        formula=rf"\left\lceil \tfrac{{{num(stored.num_bytes)}}}{{{num(run.sizes.page_bytes)}}} "
        rf"\right\rceil = {stored.num_pages},\quad {stored.num_pages} \cdot "
        rf"{num(run.sizes.page_bytes)} - {num(stored.num_bytes)} = {num(stored.padding_bytes)}"
        r"\ \text{B}",
        tables=data(stored.tables, "pages", "formats"),
        bytes=bytes_text(stored.num_bytes),
        pages=stored.num_pages,
        padding=bytes_text(stored.padding_bytes),
        share=percent_text(stored.padding_share),
        different=stored.num_different,
    )


def draw_stale(found: studies.StaleStudy) -> None:
    """What a page that changes kind hands to its next owner."""
    page.section(
        "stale",
        figures.stale_pictures(found.tables),
        tables=data(found.tables),
        written=found.num_written,
        state=count_text(found.found("rows_to_state", "unscrubbed", "wrong_values")),
        **found.wrong_outputs,
    )


def draw_life() -> None:
    """Who leaves next, who copies, where free pages are stranded, what a page leaves behind."""
    if stale:  # the fault that the reader switched on
        draw_stale(stale)
    leaving = run.tables["evictions"]
    page.section(
        "order",
        figures.order_pictures({"order": now.order, "evictions": leaving}),
        tables=data({"order": now.order, "evictions": leaving}),
        step=now.step,
        evicted=len(leaving),
        cached=now.num_cached,
        free=now.num_free,
    )
    knobs = page.body_controls(
        ui.Slider("frag_burst", 6, low=1, high=12), ui.Slider("frag_ids", 32, low=3, high=32)
    )
    stuck = page.study(studies.fragments, **sizes, burst=knobs.frag_burst, num_ids=knobs.frag_ids)
    page.section(
        "fragments",
        figures.fragment_pictures(stuck.tables),
        tables=data(stuck.tables),
        formula=[
            rf"\left\lceil \tfrac{{{num(memory.state_bytes_per_request)}}}"
            rf"{{{num(stuck.page_bytes)}}} \right\rceil = {stuck.run_pages}\ \text{{neighbours}}",
            rf"{model.num_kda_layers} \cdot \left\lceil \tfrac{{{num(run.sizes.kda_bytes)}}}"
            rf"{{{num(stuck.page_bytes)}}} \right\rceil = {stuck.state_pages}"
            r"\ \text{pages anywhere}",
        ],
        finding=page.t(
            f"fragments.{stuck.reason or 'fits'}",
            waiting=stuck.num_waiting,
            free=count_text(stuck.free_pages),
            gap=count_text(stuck.gap_pages),
            run=stuck.run_pages,
            ids=knobs.frag_ids,
            usage=percent_text(stuck.usage, 0),
        ),
        burst=knobs.frag_burst,
        run=stuck.run_pages,
        pages=stuck.state_pages,
        page=bytes_text(stuck.page_bytes),
        waiting=stuck.num_waiting,
        pool=stuck.num_waiting_pool,
    )
    knobs = page.body_controls(ui.Slider("fork_tokens", 1300, low=1, high=6000))
    forked = page.study(studies.fork, **sizes, num_tokens=knobs.fork_tokens)
    page.section(
        "fork",
        figures.fork_picture(forked.tables),
        columns=1,
        tables={"pages": Wide(forked.tables["pages"], ("stage", "request", "page", "use"))},
        pages=forked.num_pages,
        unshared=forked.num_unshared,
        copied=forked.num_copied,
        shared=forked.num_shared,
        wrong=forked.num_wrong,
        tokens=count_text(forked.num_tokens),
    )
    if not stale:
        draw_stale(page.study(studies.stale_bytes, **sizes))


{"sizes": draw_sizes, "life": draw_life}[scene]()
page.words(
    model=page.t(f"option.{v.model}"),
    tp=v.tp,
    state=bytes_text(memory.state_bytes_per_request),
    row=bytes_text(memory.mla_bytes_per_token),
    tokens=count_text(memory.break_even_tokens),
)
