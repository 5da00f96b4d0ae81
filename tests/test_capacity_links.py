"""Every published number opens the scene of the planner that computes it, with its inputs."""

from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

from k3core.capacity.openings import GridOpening, GridView, PlanOpening, PlanView, PrintedOpening
from k3core.capacity.planner import plan
from k3core.capacity.published import BY_CODE, RECORDS
from k3core.studies import capacity as studies
from k3core.ui.planner import query_of, row_query, values_of
from k3core.ui.planner.scenes import GRID_SPECS, RECIPE, printed_specs

PAGE = "../pages/8_Capacity_Planner.py"


def deployment_of(query):
    values = values_of(query, strict=True)
    requests = values.pop("target_requests")
    return studies.deployment(**values), requests


def taken(specs, query):
    """What controls say for a query; each key of theirs must be taken as it is written."""
    return {
        spec.key: spec.parse(query[spec.key], {}) if spec.key in query else spec.default
        for spec in specs
    }


def view_of(query):
    """What the scene that a query opens computes, through the controls of that scene."""
    scene = query.get("capacity_scene", "plan")
    if scene == "printed":
        v = taken(printed_specs(RECIPE), query)
        return studies.printed(
            num_blocks=v["printed_blocks"], limit=v["printed_limit"],
            block_tokens=v["printed_block"], fixed_blocks=v["printed_fixed"],
            groups=v["printed_groups"], running=v["printed_running"],
        ).pool  # fmt: skip
    if scene == "grid":
        values, v = values_of(query, strict=True), taken(GRID_SPECS, query)
        values.pop("target_requests")
        r = studies.grid(
            prompt_tokens=v["grid_prompt"], repeats=v["grid_repeats"], hash_tokens=v["grid_hash"],
            block_tokens=v["grid_block"], context_parallel=v["grid_dcp"],
            retention_tokens=v["grid_retention"], dropped_blocks=v["grid_drop"], **values,
        )  # fmt: skip
        return GridView(r.grid, r.prompt_tokens, r.repeats)
    wanted, requests = deployment_of(query)
    pinned = query.get("pin")
    before = None if pinned is None else plan(deployment_of(dict(parse_qsl(pinned)))[0])
    return PlanView(plan(wanted), requests, before)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.code)
def test_the_controls_take_a_row_s_inputs_and_give_its_value(record):
    assert record.read(view_of(row_query(record))) == record.computed


@pytest.mark.parametrize(
    "record",
    [r for r in RECORDS if isinstance(r.opening, PlanOpening)],
    ids=lambda record: record.code,
)
def test_a_link_keeps_the_deployment_of_its_row(record):
    """Names left to a default may be spelled out; nothing is moved to a nearest step."""
    wanted, _ = deployment_of(query_of(record.opening.deployment))
    one, other = plan(wanted).as_dict(), plan(record.opening.deployment).as_dict()
    assert one == other


def test_every_kind_of_opening_is_used():
    kinds = {type(record.opening) for record in RECORDS}
    assert kinds == {PlanOpening, GridOpening, PrintedOpening}


def opened(code):
    app = AppTest.from_file(PAGE, default_timeout=60)
    for key, value in row_query(BY_CODE[code]).items():
        app.query_params[key] = value
    return app.run()


@pytest.mark.parametrize(
    "code", ["1a", "7c", "22b", "23f", "25", "40c", "44b", "47", "48", "49b", "56c", "59", "66d"]
)
def test_an_opened_row_shows_its_computed_value(code):
    record, app = BY_CODE[code], opened(code)
    assert not app.exception
    assert not app.error
    assert not app.warning
    banner = next(m.value for m in app.markdown if f"Published number {code}" in m.value)
    banner = banner.replace("\u00a0%", " %")
    assert f"computed here **{record.computed_text}**" in banner
    assert record.published_text in banner


def test_a_moved_control_moves_the_value_and_says_what_the_row_has():
    app = opened("1a")
    app.select_slider(key="tp").set_value(4).run()
    words = [m.value for m in app.markdown]
    assert any("computed here **1,628,160 B**" in text for text in words)
    assert any("it is 814,080 B" in text for text in words)
    app.button(key="_row_again").click().run()
    assert any("computed here **814,080 B**" in m.value for m in app.markdown)


def test_a_row_can_be_closed_and_leads_back_to_the_table():
    app = opened("1a")
    app.button(key="_row_close").click().run()
    assert "row" not in app.query_params
    assert not any("Published number" in m.value for m in app.markdown)
    app = opened("1a")
    app.button(key="_row_back").click().run()
    assert app.query_params["capacity_scene"] == "published"
    assert len(app.dataframe[0].value) == len(RECORDS)


def test_every_row_of_the_table_has_a_link():
    app = AppTest.from_file(PAGE, default_timeout=60)
    app.query_params["capacity_scene"] = "published"
    table = app.run().dataframe[0].value
    assert len(table) == len(RECORDS)
    assert table["open"].str.startswith("?row=").all()
