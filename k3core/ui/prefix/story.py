"""A scenario of the prefix player in words: what each step does, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k3core.studies.prefix_cache import BLOCK, Step
from k3core.ui.page import Page
from k3core.units import count_text

Result = tuple[str, Mapping[str, Any]]


def sentence(page: Page, step: Step, result: Result | None = None) -> str:
    """One operation, with its result when it is done."""
    action = "rest" if step.action == "write" and step.upto < 0 else step.action
    words = page.t(
        f"player.{action}",
        name=step.name,
        blocks=" ".join(step.blocks),
        tokens=count_text(max(step.upto, 0) * BLOCK),
        salt=page.t("player.salted", salt=step.salt) if step.salt else "",
    )
    if result is None:
        return words
    code, numbers = result
    texts = {
        name: page.t(f"reason.{value}_short") if name == "reason" else count_text(value)
        for name, value in numbers.items()
    }
    if code in ("found", "missed") and not numbers["lost"]:
        code = f"{code}_all"
    return f"{words} — {page.t(f'player.{code}', **texts)}"


def story(page: Page, steps: Sequence[Step], results: Sequence[Result]) -> str:
    """All steps as a numbered list: the last one done is bold, those to come are grey."""
    lines = []
    for index, step in enumerate(steps):
        done = index < len(results)
        words = sentence(page, step, results[index] if done else None)
        last = index == len(results) - 1
        marked = f"**{words}**" if last else words if done else f":gray[{words}]"
        lines.append(f"{index + 1}. {marked}")
    return "\n".join(lines)
