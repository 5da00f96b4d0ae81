"""Long studies in steps: progress, a button that stops them, and what was finished so far.

Streamlit ends a run at its next element when the reader clicks, so a study that is computed one
step at a time can be cancelled between two steps. The steps that are done stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

import streamlit as st

from k3core.ui.cache import cached
from k3core.ui.page import Page

SHOW_AFTER_S = 0.8  # quicker work shows no bar, which would only flicker


class StepResults(NamedTuple):
    """Results of the steps that ran, in order, and the parameters that they ran with.

    Attributes:
        num_steps: steps of the whole study; fewer results mean that the reader stopped it.
    """

    results: list[Any]
    params: dict[str, Any]
    num_steps: int

    @property
    def complete(self) -> bool:
        return len(self.results) == self.num_steps


def in_steps(
    page: Page,
    study: Callable[..., Any],
    variants: Sequence[Mapping[str, Any]],
    **params: Any,
) -> StepResults:
    """Run ``study(**variant, **params)`` for each variant through its cache.

    From ``SHOW_AFTER_S`` on a progress bar and a button stand above the page's next element; the
    button keeps what is done, and another one goes on. At least one step is always computed. Bad
    input becomes an error with its remedy beside the last steps that worked.

    Texts of the page: ``steps.progress`` ({done}, {total}), ``steps.cancel``, ``steps.cancelled``
    ({done}, {total}), ``steps.resume``.
    """
    name = f"_steps_{page.slug}_{study.__name__}"
    memory = st.session_state.setdefault(name, {"wanted": None, "stopped": False, "good": None})
    wanted = (tuple(map(repr, variants)), repr(sorted(params.items())))
    if memory["wanted"] != wanted:
        memory.update(wanted=wanted, stopped=False, done=[])
    done: list[Any] = memory["done"]
    place, started, total = st.empty(), monotonic(), len(variants)
    shown = False
    run = cached(study)
    try:
        while len(done) < total and not (memory["stopped"] and done):
            if monotonic() - started > SHOW_AFTER_S:
                text = page.t("steps.progress", done=len(done), total=total)
                if not shown:
                    shown = True
                    with place.container():
                        bar = st.progress(0.0)
                        st.button(
                            page.t("steps.cancel"),
                            key=f"{name}_cancel",
                            icon=":material/stop_circle:",
                            on_click=memory.update,
                            kwargs={"stopped": True},
                        )
                bar.progress(len(done) / total, text)
            done.append(run(**variants[len(done)], **params))
    except ValueError as error:
        st.error(page.t("bad_input", error=str(error)), icon=":material/block:")
        if memory["good"] is None:
            st.stop()
        page.mark_stale()
        return StepResults(*memory["good"])
    place.empty()
    if len(done) < total:
        with place.container():
            st.warning(page.t("steps.cancelled", done=len(done), total=total))
            st.button(
                page.t("steps.resume"),
                key=f"{name}_resume",
                icon=":material/play_circle:",
                on_click=memory.update,
                kwargs={"stopped": False},
            )
    else:
        memory["good"] = (list(done), params, total)
    return StepResults(list(done), params, total)
