"""The capacity page in the app test: opened with a query, its texts and numbers."""

from streamlit.testing.v1 import AppTest

PAGE = "pages/8_Capacity_Planner.py"


def open_page(**query):
    app = AppTest.from_file(f"../{PAGE}", default_timeout=60)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def texts(app):
    kinds = (app.markdown, app.caption, app.subheader, app.info, app.warning, app.success)
    return [element.value for kind in kinds for element in kind]


def shown(app):
    """Everything on the page that holds a number."""
    assert not app.exception
    assert not [text for text in texts(app) if "⟦" in text]
    metrics = [(m.label, m.value, m.delta) for m in app.metric]
    formulas = [m.value for m in app.get("latex")] if app.get("latex") else []
    words = [m.value for m in app.markdown]
    return metrics, formulas, words


def values(app):
    return [value for _, value, _ in shown(app)[0]]
