"""Redraw of every page, every study computed anew: ``pytest tests/benchmarks/bench_redraw.py``.

Times are CPU seconds of the script, which runs on one thread, without the browser.
"""

import time

import pytest
import streamlit as st

from k3core.ui.controls import Choice
from tests.benchmarks.measures import at_most, note_value
from tests.test_app import PATHS, Reader, open_page, recorded_controls  # noqa: F401

pytestmark = pytest.mark.benchmark(group="Redraw of a page", timer=time.process_time)


def redraw(reader: Reader) -> None:
    st.cache_data.clear()
    reader.run()


@pytest.mark.parametrize("path", PATHS)
def test_default_sizes(open_page, benchmark, path):  # noqa: F811
    reader = open_page(path)
    benchmark.pedantic(redraw, args=(reader,), rounds=3)
    note_value(benchmark, "CPU s", benchmark.stats.stats.data, at_most(1))


@pytest.mark.parametrize("path", PATHS)
def test_largest_values(open_page, benchmark, path):  # noqa: F811
    """One control after the other at its largest value, or at each of its options."""
    reader = open_page(path)
    taken = {}
    for key, drawn in list(reader.drawn.items()):
        for place in drawn.moves() if isinstance(drawn.spec, Choice) else drawn.moves()[-1:]:
            if reader.widget(key) is None:
                continue
            reader.widget(key).set_value(place)
            start = time.process_time()
            redraw(reader)
            taken[f"{key}={place}"] = time.process_time() - start
            reader.widget(key).set_value(drawn.value)
        reader.run()
    benchmark.pedantic(redraw, args=(reader,), rounds=1)
    if taken:
        slowest = max(taken, key=taken.__getitem__)
        note_value(benchmark, f"CPU s, slowest: {slowest}", [taken[slowest]], at_most(3))
