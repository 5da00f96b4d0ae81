"""The first screen: drawn without torch, its numbers published, its doors open."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from k3core.ui.background import BackgroundTask, background
from k3core.ui.navigation import PAGE_BY_SLUG

ROOT = Path(__file__).parent.parent

WITHOUT_TORCH = """
import sys
from concurrent.futures import Future
from streamlit.testing.v1 import AppTest
import k3core.ui
import k3core.ui.background

class Task:
    future = Future()
    elapsed_s = 0.0

def background(module, study):
    seen.append("torch" in sys.modules)
    return Task

seen = []
k3core.ui.prewarm = lambda: seen.append("torch" in sys.modules)
k3core.ui.background.background = background
app = AppTest.from_file("Home.py", default_timeout=60).run()
assert not app.exception, app.exception
print(seen, [m.value for m in app.metric], len(app.get("vega_lite_chart")))
"""


def test_home_is_drawn_before_torch_is_loaded():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.startswith(
        "[False, False, False] ['53.57 MiB', '13.5 KiB', '4,064 tokens'] 1"
    )


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
        name = Path(page.path).stem.split("_", 1)[-1]
        assert page.slug == "home" or any(name in target for target in linked), page.path


def test_the_checks_report_their_blind_spots():
    """The real summary, once its thread has ended."""
    result = background("k3core.studies.verification", "summary").future.result(timeout=120)
    app = AppTest.from_file("../Home.py", default_timeout=60).run()
    assert not app.exception
    texts = [element.value for element in app.markdown]
    assert any(f"{result.num_pass} checks pass" in text for text in texts)
    (table,) = [text for text in texts if text.startswith("| ")]
    blind = [int(row.split("|")[-2]) for row in table.splitlines()[2:]]
    assert blind == list(result.blind.values())
    assert max(blind) > 0


def test_checks_that_fail_to_run_are_reported_and_the_page_stands(monkeypatch):
    task = BackgroundTask(lambda: int("no number"))
    task.future.exception(timeout=10)
    monkeypatch.setattr("k3core.ui.background.background", lambda module, study: task)
    app = AppTest.from_file("../Home.py", default_timeout=60).run()
    assert not app.exception
    assert "no number" in app.error[0].value
    assert len(app.metric) == 3


def test_a_background_study_runs_once_per_process():
    first = background("k3core.studies.home", "two_memories")
    assert background("k3core.studies.home", "two_memories") is first
    assert first.future.result(timeout=10).state_bytes_per_request == 56_171_520


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
