"""Redraw of every page, every study computed anew: ``pytest tests/benchmarks/bench_redraw.py``.

Bounds: one second at the default sizes, three with a control at its largest value. Times are CPU
seconds of the script, which runs on one thread, without the browser.
"""

import time

import pytest
import streamlit as st

from k3core.ui.controls import Choice
from tests.test_app import PATHS, Reader, open_page, recorded_controls  # noqa: F401


def redraw_s(reader: Reader) -> float:
    st.cache_data.clear()
    start = time.process_time()
    reader.run()
    return time.process_time() - start


@pytest.mark.parametrize("path", PATHS)
def test_default_sizes(open_page, path, record_property):  # noqa: F811
    reader = open_page(path)
    seconds = min(redraw_s(reader) for _ in range(3))
    record_property("seconds", seconds)
    print(f"\n{path}: {seconds:.2f} s")
    assert seconds < 1


@pytest.mark.parametrize("path", PATHS)
def test_largest_values(open_page, path):  # noqa: F811
    reader = open_page(path)
    slow = {}
    for key, drawn in list(reader.drawn.items()):
        for place in drawn.moves() if isinstance(drawn.spec, Choice) else drawn.moves()[-1:]:
            if reader.widget(key) is None:
                continue
            reader.widget(key).set_value(place)
            slow[f"{key}={place}"] = redraw_s(reader)
            reader.widget(key).set_value(drawn.value)
        reader.run()
    print(
        f"\n{path}:",
        *(f"{name} {s:.2f} s" for name, s in sorted(slow.items(), key=lambda x: -x[1])[:4]),
    )
    assert all(seconds < 3 for seconds in slow.values()), slow
