"""Long work beside the pages: a study that runs once per server process, in a thread of its own.

A page that computed it in its own run could not answer a click before it ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any

import streamlit as st


class BackgroundTask:
    """A study on its way: ``future`` holds its result or error, ``elapsed_s`` the time so far."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._work = work
        self._started = time.monotonic()
        threading.Thread(target=self._run, name="background", daemon=True).start()

    def _run(self) -> None:
        try:
            self.future.set_result(self._work())
        except Exception as error:
            self.future.set_exception(error)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started


@st.cache_resource(max_entries=8, show_spinner=False)
def background(module: str, study: str) -> BackgroundTask:
    """Start ``module.study()`` with its defaults, once per process; import it there too.

    Args:
        module: full name, so that the page itself need not import it.
        study: name of a function that takes no arguments.
    """
    return BackgroundTask(lambda: getattr(import_module(module), study)())
