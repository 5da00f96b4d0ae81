"""What the server process does once: heavy imports early and in the background, then one freeze.

Streamlit collects garbage after every run; with torch, pandas and altair loaded that walk costs
over 100 ms. Freezing the objects of the imports takes them out of the walk.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading

_LOCK = threading.Lock()
_started = False


def _import_and_freeze() -> None:
    importlib.import_module("k3core.studies.single_thread")
    gc.collect()
    gc.freeze()


def prewarm() -> None:
    """Start loading torch in the background, once per process, so that the next page is fast."""
    global _started
    with _LOCK:
        if _started:
            return
        _started = True
    if "torch" in sys.modules:
        importlib.import_module("k3core.studies.single_thread")
        gc.freeze()
    else:
        threading.Thread(target=_import_and_freeze, name="prewarm", daemon=True).start()
