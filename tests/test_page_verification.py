"""Page 9: its pictures and what its controls change."""

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from k3core.figures import verification as figures
from k3core.figures.style import dress
from k3core.i18n import t
from k3core.studies import verification as v

PAGE = "pages/9_Verification.py"


@pytest.fixture(scope="module")
def healthy():
    return v.run_checks()


@pytest.fixture(scope="module")
def matrix():
    return v.fault_matrix()


@pytest.mark.parametrize("fault", ["healthy", "gate_multiplier"])
@pytest.mark.parametrize("width", [1000, 250])
def test_pictures_compile_on_a_desktop_and_on_a_phone(matrix, fault, width):
    import vl_convert

    tables = {**matrix.tables, "selected": pd.DataFrame({"fault": [fault]})}
    charts = {
        "main": figures.main_picture(tables),
        **figures.fig_break_it(tables),
        **figures.fig_blind_spots(tables),
        **figures.fig_keys(v.key_sweep().tables),
    }
    for name, chart in charts.items():
        chart.title = ""
        spec = dress(chart.properties(width=width), "verification").to_dict()
        svg = vl_convert.vegalite_to_svg(spec)
        assert "verification." not in svg, name
        assert svg.count("<path") + svg.count("<text") > 15, name


def test_main_picture_has_a_cell_for_every_row_and_fault(matrix):
    spec = figures.main_picture(matrix.tables).to_dict()
    largest = max(spec["datasets"].values(), key=len)
    assert len(largest) == len(v.MATRIX_CHECKS) * len(v.FAULT_CODES)


def open_page(**query):
    app = AppTest.from_file(f"../{PAGE}", default_timeout=120)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def metrics(app):
    assert not app.exception
    return [metric.value for metric in app.metric]


def test_page_shows_the_counts(matrix, healthy):
    shown = metrics(open_page())
    assert shown[:3] == [f"{healthy.num_pass} / {healthy.num_checks}", "0", "7 / 7"]
    assert shown[3] == f"{matrix.count('blind')} / {matrix.num_rows * matrix.num_faults}"


def test_choosing_a_fault_runs_the_checks_again_and_adds_the_broken_values():
    before = open_page()
    app = open_page(fault="commit_off_by_one")
    assert metrics(app)[:2] == ["52 / 60", "8"]
    assert len(app.get("vega_lite_chart")) == len(before.get("vega_lite_chart")) + 1
    assert t("verification.fault.commit_off_by_one") in [c.value for c in app.caption]


def test_rows_can_be_narrowed_to_the_failed_ones():
    app = open_page(fault="conv_not_rolled_back", check_rows="failed")
    tables = [frame.value for frame in app.dataframe if "claim" in frame.value.columns]
    assert set(tables[0]["id"]) == {
        row for row, faults in v.EXPECTED.items() if "conv_not_rolled_back" in faults
    }
    assert (tables[0]["verdict"] == t("verification.label.fail")).all()
    assert "Speculative_Replay?" in tables[0]["open"].iloc[0]
    assert "fault=conv_not_rolled_back" in tables[0]["open"].iloc[0]


def test_no_row_of_a_kind_is_said_in_words():
    app = open_page(check_rows="failed")
    assert t("verification.rows.none") in [c.value for c in app.caption]


def test_format_and_keys_change_the_numbers():
    def cells(**query):
        app = open_page(**query)
        assert not app.exception
        return next(f.value for f in app.dataframe if "tolerance" in f.value.columns)

    plain = cells()
    assert not plain.equals(cells(check_dtype="float32"))
    assert not plain.equals(cells(check_keys="random"))


def test_an_unknown_fault_in_the_link_is_noted():
    app = open_page(fault="gremlins")
    assert any("gremlins" in warning.value for warning in app.warning)
    assert metrics(app)[1] == "0"
