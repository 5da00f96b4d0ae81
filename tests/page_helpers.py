"""One page of the app, opened by a link."""

from functools import partial

from streamlit.testing.v1 import AppTest


def page_opener(page):
    """A function that opens ``page`` (a path in the repository) with the query given by keyword."""
    return partial(open_page, page)


def open_page(page, **query):
    app = AppTest.from_file(f"../{page}", default_timeout=120)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()
