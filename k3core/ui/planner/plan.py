"""The scene of one plan: the bill over the roofs, then what moves them."""

from __future__ import annotations

import math
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pandas as pd
import streamlit as st

from k3core.capacity.block_pool import BlockPool
from k3core.capacity.model import KIND_NAMES
from k3core.capacity.openings import PlanView
from k3core.capacity.saved_plan import save_plan
from k3core.figures import capacity as figures
from k3core.studies import capacity as studies
from k3core.studies.capacity import formulas
from k3core.ui.page import Metric, Page
from k3core.ui.planner.controls import config_text, is_split, values_of
from k3core.ui.planner.published import row_banner
from k3core.ui.tables import Wide
from k3core.ui.url import quoted
from k3core.units import bytes_text, count_text, percent_text


def plan_scene(page: Page, v: SimpleNamespace) -> None:
    """The bill over the roofs, then what moves them."""
    r = page.study(studies.plan, config=config_of(v.model), **vars(v))
    tables, second = dict(r.tables), pinned_study(page, v)
    if second is not None:
        tables |= {f"{name}_b": second.tables[name] for name in ("bill", "roofs", "point")}
    memory, cost = r.memory, r.cost
    block = r.planned.blocks.block_tokens
    row_banner(
        page, PlanView(r.planned, v.target_requests, None if second is None else second.planned)
    )
    page.metrics(
        Metric("requests", count_text(r.max_requests), "derived", limit_text(page, r)),
        Metric(
            "request_bytes",
            bytes_text(r.request_bytes),
            "derived",
            page.t(
                "unit.longest",
                bytes=bytes_text(r.longest_request_bytes),
                count=count_text(r.longest_requests),
            ),
        ),
        Metric("once", bytes_text(memory.state_bytes_per_request), "derived"),
        Metric(
            "exchange", page.t("unit.tokens", count=count_text(memory.break_even_tokens)), "derived"
        ),
    )
    page.chart(figures.bill(tables), "bill")
    for line in beside_the_bill(page, r):
        st.caption(line)
    page.main(
        figures.main_picture(tables),
        worded(page, r.tables["roofs"], "roof"),
        how=page.t("main.two_pools" if is_split(vars(v)) else "main.one_pool"),
        engine=r.profile.engine,
        version=r.profile.version,
        date=r.profile.date,
    )
    pin_row(page, v, r, second)
    if v.mean_tokens < block:
        st.info(
            page.t(
                "profile.short_prompt", tokens=count_text(v.mean_tokens), block=count_text(block)
            )
        )
    warnings_section(page, r)
    roof_sections(page, r)
    schemes, split = r.tables["schemes"], is_split(vars(v))
    page.section(
        "schemes",
        figures.fig_schemes(r.tables),
        formula=formulas.rollback_formula(cost),
        tables={
            "schemes": Wide(
                worded(page, schemes, "scheme", "keeps", "numerics").drop(
                    columns=["text", "chosen"] + ["state_blocks", "block_tokens"] * split
                ),
                ("scheme", "extra_bytes", "requests", "engine", "numerics"),
            )
        },
        finding=schemes_finding(page, r),
        pool="" if split else schemes_in_blocks(page, schemes),
        conv=bytes_text(cost.conv_draft_bytes),
    )
    pool_section(page, v, r)
    page.section(
        "degrees" if memory.model.is_mla else "degrees_gqa",
        figures.fig_break_even(r.tables),
        tables={
            "every_tp": Wide(
                r.tables["every_tp"].drop(columns="chosen"),
                ("tp", "state_bytes_per_layer", "break_even_tokens", "block_tokens"),
            )
        },
        tp=v.tp,
        tokens=count_text(memory.break_even_tokens),
    )
    symbols = "chain.two_pools" if is_split(vars(v)) else "chain.one_pool"
    page.section("chain", symbols=page.t(symbols))
    cells, lines = st.columns(3), formulas.chain(r.planned)
    for index, line in enumerate(lines):
        cells[3 * index // len(lines)].latex(line)
    bill = worded(page, r.tables["bill"], "part").drop(columns=["start", "end", "text"])
    page.data(bill, "bill")
    numbers = r.tables["numbers"].drop(columns="kind")
    numbers.insert(0, "meaning", [page.t(f"number.{name}") for name in numbers["name"]])
    page.data(Wide(numbers, ("meaning", "value")), "plan")
    page.data(
        Wide(r.tables["profile"], ("engine", "version", "date", "block_rule", "slots")), "profile"
    )
    st.download_button(
        page.t("download.json"),
        save_plan(r.planned, config_of(v.model)),
        file_name="capacity_plan.json",
        mime="application/json",
        on_click="ignore",
    )
    note = page.t(f"note.{memory.model.code}")
    st.caption(page.t("profile.caption", source=memory.model.source, note=note))


def schemes_finding(page: Page, r: Any) -> str:
    """What the chosen scheme adds, against the other kind of scheme."""
    schemes, cost = r.tables["schemes"].set_index("scheme"), r.cost
    words = {"drafts": cost.draft_len, "chosen": bytes_text(cost.extra_bytes)}
    if cost.draft_len == 0:
        nothing = int((schemes["extra_bytes"] == 0).sum())
        return page.t("schemes.undrafted", nothing=nothing, total=len(schemes), **words)
    if cost.scheme.record:
        other = bytes_text(schemes.at["snapshots", "extra_bytes"])
        return page.t("schemes.records", snapshots=other, **words)
    records = schemes[schemes["keeps"] == "records"]["extra_bytes"]
    return page.t(
        "schemes.states",
        least=bytes_text(records.min()),
        scheme=page.t(f"label.{records.idxmin()}"),
        **words,
    )


def schemes_in_blocks(page: Page, schemes: pd.DataFrame) -> str:
    """Why requests do not follow the added bytes in one pool."""
    rows = schemes.set_index("scheme")
    return page.t(
        "schemes.one_pool",
        state_only=rows.at["snapshots-state-only", "state_blocks"],
        aligned=rows.at["snapshots-align", "state_blocks"],
        records=rows.at["raw-inputs", "state_blocks"],
        block=count_text(rows.at["raw-inputs", "block_tokens"]),
        corrections=count_text(rows.at["corrections", "block_tokens"]),
    )


def worded(page: Page, table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The table with the codes of these columns in words."""
    return table.assign(
        **{name: [page.t(f"label.{code}") for code in table[name]] for name in columns}
    )


def limit_text(page: Page, r: Any) -> str:
    """How many requests there were without drafts; what limits them where drafts do not matter."""
    if r.requests_plain != r.max_requests:
        return page.t("verdict.plain", count=count_text(r.requests_plain))
    return page.t(f"verdict.at-{r.verdict}")


def beside_the_bill(page: Page, r: Any) -> list[str]:
    """Formats and bytes that the picture does not name: the drafter's cache, indexer keys."""
    memory, lines = r.memory, []
    if memory.model.kind != "kda":
        lines.append(page.t("profile.kinds", kind=KIND_NAMES[memory.model.kind].split()[0]))
    if memory.drafter_layers:
        lines.append(
            page.t(
                "profile.drafter",
                layers=memory.drafter_layers,
                dtype=option_text(page, memory.drafter_dtype),
                each=bytes_text(memory.drafter_bytes_per_token),
            )
        )
    if memory.model.indexer_dim:
        lines.append(
            page.t(
                "profile.indexer",
                each=bytes_text(memory.indexer_bytes_per_token),
                one=bytes_text(memory.indexer_key_bytes),
                pool=memory.model.indexer_pool,
                layers=memory.model.num_mla_layers,
                whole=bytes_text(memory.indexer_bytes_per_token * r.mean_tokens),
                tokens=count_text(r.mean_tokens),
            )
        )
    return lines


def config_of(model: str) -> str:
    """The config text where it is used, so that cached results do not depend on it elsewhere."""
    return config_text() if model == studies.CUSTOM else ""


def pinned_study(page: Page, v: SimpleNamespace) -> Any:
    """The plan of configuration B, or None; one that cannot be planned says why."""
    pinned = page.query.get("pin", "")
    if not pinned:
        return None
    query = dict(parse_qsl(pinned, keep_blank_values=True))
    if not any(value or key in vars(v) for key, value in query.items()):
        page.note(page.t("pin.unreadable", raw=quoted(pinned)))
        return None

    def complain(key: str, raw: str, fallback: Any) -> None:
        name, value = page.t(f"control.{key}"), option_text(page, fallback)
        page.note(page.t("pin.not_offered", name=name, raw=quoted(raw), value=value))

    values = values_of(query, complain=complain)
    try:
        return studies.plan(config=config_of(values["model"]), **values)
    except ValueError as error:
        st.warning(page.t("pin.unusable", error=str(error)))
        return None


def pin_row(page: Page, v: SimpleNamespace, r: Any, second: Any) -> None:
    """Pin this configuration, or compare with the pinned one and let it go."""
    left, right = st.columns([1, 3], vertical_alignment="center")
    if second is None:
        if left.button(page.t("pin.button"), icon=":material/push_pin:", key="_pin"):
            own = {k: text for k, text in page.query.items() if k not in ("lang", "pin", "row")}
            st.query_params["pin"] = urlencode(own) or "model=kimi-k3"
            st.rerun()
        return
    if left.button(page.t("pin.remove"), icon=":material/close:", key="_unpin"):
        st.query_params.from_dict({k: x for k, x in page.query.items() if k != "pin"})
        st.rerun()
    other = values_of(dict(parse_qsl(page.query["pin"], keep_blank_values=True)))
    names = [
        f"{page.t(f'control.{key}')} {option_text(page, value)}"
        for key, value in other.items()
        if value != vars(v)[key]
    ]
    text = page.t(
        "pin.compare",
        a=count_text(r.max_requests),
        b=count_text(second.max_requests),
        a_bytes=bytes_text(r.request_bytes),
        b_bytes=bytes_text(second.request_bytes),
    )
    if names:
        text += " " + page.t("pin.changed", names="; ".join(names))
    right.markdown(f"{text} {page.t('main_b.look')}")


def option_text(page: Page, value: Any) -> str:
    """The word of a code; a number as it is."""
    text = page.t(f"option.{value}")
    return str(value) if text.startswith("⟦") else text


def warnings_section(page: Page, r: Any) -> None:
    """Known production faults that this plan runs into."""
    found = r.warnings
    title = "warnings.title" if found else "warnings.none"
    with st.expander(page.t(title, count=len(found)), icon=":material/warning:"):
        for warning in found:
            words = {name: _warning_text(name, value) for name, value in warning.values.items()}
            st.markdown(f"{page.t(f'warnings.{warning.code}', **words)} :gray[{warning.source}]")


def _warning_text(name: str, value: float) -> str:
    if name in ("bytes", "need"):
        return bytes_text(value)
    if name in ("share", "before", "after"):
        return percent_text(value)
    return count_text(value)


def roof_sections(page: Page, r: Any) -> None:
    """The roofs in words, and the inverse: what a target needs."""
    target, deployment, pool = r.target, r.planned.deployment, r.pool
    shares: dict[str, Any] = {}
    if isinstance(pool, BlockPool):
        shares = {
            "requests": count_text(r.max_requests),
            "state_blocks": count_text(pool.state_blocks_per_request),
            "token_blocks": count_text(pool.token_blocks(r.mean_tokens)),
            "num_blocks": count_text(pool.num_blocks),
            "beside": bytes_text(pool.cost.beside_bytes),
            "states_alone": count_text(pool.state_roof),
            "tokens_alone": count_text(int(pool.mla_roof(r.mean_tokens))),
        }
    roofs = ", ".join(
        page.t(f"roof.{roof.code}", count=count_text(math.floor(roof.requests)))
        for roof in r.planned.roofs
    )
    page.section(
        "limits_blocks" if shares else "limits",
        tables={
            "limits": r.tables["limits"].assign(
                roof=[page.t(f"roof_name.{code}") for code in r.tables["limits"]["roof"]]
            )
        },
        verdict=page.t(f"verdict.at-{r.verdict}"),
        tokens=count_text(r.mean_tokens),
        roofs=roofs,
        exchange=count_text(r.memory.break_even_tokens),
        **shares,
    )
    page.section(
        "target",
        tables={
            "target": Wide(
                pd.DataFrame([asdict(target)]),
                ("pool_ratio", "state_slots", "num_blocks", "longest_context"),
            )
        },
        requests=count_text(target.requests),
        tokens=count_text(target.mean_tokens),
        budget=bytes_text(target.budget_bytes),
        slots=count_text(target.state_slots),
        ratio=f"{target.pool_ratio:.2f}",
        blocks=count_text(target.num_blocks),
        block=count_text(r.planned.blocks.block_tokens),
        block_budget=bytes_text(target.block_budget_bytes),
        longest=count_text(target.longest_context),
        fits=page.t("target.fits" if target.fits else "target.misses"),
        gib=deployment.budget_gib,
    )


def pool_section(page: Page, v: SimpleNamespace, r: Any) -> None:
    """What fills each pool."""
    pool = r.pool
    words: dict[str, Any] = {
        "admitted": count_text(r.max_requests),
        "idle": bytes_text(r.idle_bytes),
    }
    if is_split(vars(v)):
        page.section(
            "pools",
            figures.fig_pools(r.tables),
            tables={
                "pools": worded(page, r.tables["pools"], "pool", "part"),
                "ratios": r.tables["ratios"],
            },
            tokens=count_text(v.mean_tokens),
            best=f"{r.best_ratio:.2f}",
            best_requests=count_text(r.best_ratio_requests),
            **words,
        )
        return
    page.section(
        "pools_blocks",
        figures.fig_pools(r.tables),
        columns=1,
        tables={"pools": worded(page, r.tables["pools"], "pool", "part")},
        block=count_text(pool.block_tokens),
        block_bytes=bytes_text(pool.block_bytes),
        state_blocks=pool.state_blocks_per_request,
        reuse=count_text(pool.block_tokens + 1),
        **words,
    )
