"""Study of a pasted text: a boot log, a config.json, or a plan that was downloaded here."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pandas as pd

from k3core.capacity.bootlog import read_log
from k3core.capacity.configs import ParsedConfig, parse_config
from k3core.capacity.logsolve import Solved, solve
from k3core.capacity.presets import get_preset
from k3core.capacity.saved_plan import CUSTOM, SavedPlan, is_saved_plan, load_plan


@dataclass(frozen=True)
class PasteStudy:
    """What a pasted text says.

    Attributes:
        kind: ``config``, ``plan``, ``log`` or ``nothing``.
        parsed: the model, for a config.
        solved: blocks, slots and drafts, for a log.
        saved: inputs, for a plan.

    Tables:
        lines: recognised lines of a log.
        values: what is determined, what stays open, what contradicts itself, and what cannot be.
    """

    tables: dict[str, pd.DataFrame]
    kind: str
    parsed: ParsedConfig | None = None
    solved: Solved | None = None
    saved: SavedPlan | None = None


def read(
    text: str,
    model: str = "kimi-k3",
    tp: int = 8,
    state_dtype: str = "float32",
    mla_dtype: str = "",
    config: str = "",
) -> PasteStudy:
    """Recognise a text; a log is solved for the model that is given.

    Raises:
        K3Error: the text is a broken config or plan, or ``tp`` does not divide the model's heads.
    """
    if is_saved_plan(text):
        saved = load_plan(text)
        rows = [
            ("used", field.name, str(getattr(saved.deployment, field.name)))
            for field in fields(saved.deployment)
            if field.name != "preset"
        ]
        return PasteStudy({"values": _values(rows)}, "plan", saved=saved)
    if text.lstrip().startswith("{"):
        parsed = parse_config(text)
        rows = [("used", name, "") for name in parsed.used]
        rows += [("unknown", name, "") for name in parsed.unknown]
        return PasteStudy({"values": _values(rows)}, "config", parsed=parsed)
    log = read_log(text)
    if not log.lines and not log.impossible:
        return PasteStudy({}, "nothing")
    preset = parse_config(config).preset if model == CUSTOM else get_preset(model)
    solved = solve(log, preset, tp, state_dtype, mla_dtype)
    lines = pd.DataFrame(
        [(line.number, line.code, _text(line.value), line.text) for line in log.lines],
        columns=["line", "code", "value", "text"],
    )
    rows = [("determined", code, _text(value)) for code, value in solved.values.items()]
    rows += [
        ("candidates", code, ", ".join(map(_text, options)))
        for code, options in solved.candidates.items()
    ]
    rows += [("missing", code, line) for code, line in solved.missing.items()]
    rows += [("contradiction", code, "") for code in solved.contradictions]
    rows += [("impossible", line.code, str(line.value)) for line in solved.impossible]
    return PasteStudy({"lines": lines, "values": _values(rows)}, "log", solved=solved)


def _values(rows: list[tuple[str, str, str]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["finding", "code", "value"])


def _text(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.4f}".rstrip("0").rstrip(".")
