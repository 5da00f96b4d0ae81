"""The first screen: drawn without torch, its numbers published, its doors open."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from k3core.ui.navigation import PAGE_BY_SLUG

ROOT = Path(__file__).parent.parent

WITHOUT_TORCH = """
import sys
from streamlit.testing.v1 import AppTest
import k3core.ui
seen = []
k3core.ui.prewarm = lambda: seen.append("torch" in sys.modules)
app = AppTest.from_file("Home.py", default_timeout=60).run()
assert not app.exception, app.exception
print(seen, [m.value for m in app.metric], len(app.get("vega_lite_chart")))
"""


def test_home_is_drawn_before_torch_is_loaded():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.startswith("[False] ['53.57 MiB', '13.5 KiB', '4,063 tokens'] 1")


@pytest.fixture(scope="module")
def home():
    app = AppTest.from_file("../Home.py", default_timeout=60).run()
    assert not app.exception
    return app


def test_no_text_is_missing(home):
    texts = [e.value for kind in (home.markdown, home.caption, home.subheader) for e in kind]
    labels = [link.proto.label for link in home.get("page_link")]
    assert not [text for text in texts + labels if "⟦" in text]


def test_every_page_is_linked_from_the_path(home):
    linked = {link.proto.page for link in home.get("page_link") if not link.proto.disabled}
    for page in PAGE_BY_SLUG.values():
        if (ROOT / page.path).exists() and page.slug != "home":
            name = Path(page.path).stem.split("_", 1)[1]
            assert any(name in target for target in linked), page.path


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("model", "kimi-linear-48b"),
        ("model", "glm-5.3-flash"),
        ("model", "toy"),
        ("tp", "1"),
        ("tp", "16"),
        ("state_dtype", "bfloat16"),
        ("mla_dtype", "bfloat16"),
    ],
)
def test_each_control_changes_a_number(home, key, raw):
    app = AppTest.from_file("../Home.py", default_timeout=60)
    app.query_params[key] = raw
    app.run()
    assert not app.exception
    assert [m.value for m in app.metric] != [m.value for m in home.metric]


def doors():
    """Targets and queries of Home's links, read from its source."""
    found = {}
    for node in ast.parse((ROOT / "Home.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name == "SYMPTOMS":
                for call in node.value.elts:
                    code, slug, query = (ast.literal_eval(arg) for arg in call.args)
                    found[code] = (slug, query)
            elif name == "BOOT_LOG":
                found["boot_log"] = ("capacity", ast.literal_eval(node.value))
    return found


def test_there_are_eight_symptoms_and_a_boot_log():
    assert len(doors()) == 9


@pytest.mark.parametrize("code", doors())
def test_a_door_opens_on_a_page_that_takes_its_controls(code):
    slug, query = doors()[code]
    path = PAGE_BY_SLUG[slug].path
    if not (ROOT / path).exists():
        pytest.skip(f"{path} is not written yet")
    app = AppTest.from_file(f"../{path}", default_timeout=60)
    for key, value in query.items():
        app.query_params[key] = value
    app.run()
    assert not app.exception
    assert not app.warning
    keys = {widget.key for widget in app.main if hasattr(widget, "key")}
    keys |= {widget.key for widget in app.sidebar if hasattr(widget, "key")}
    assert set(query) <= keys


def test_the_boot_log_door_shows_its_51_requests():
    slug, query = doors()["boot_log"]
    app = AppTest.from_file(f"../{PAGE_BY_SLUG[slug].path}", default_timeout=60)
    for key, value in query.items():
        app.query_params[key] = value
    app.run()
    assert app.metric[0].value == "51"
