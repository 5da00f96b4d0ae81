"""What the player can play: operations on a new pool and cache, written one after the other.

``register A abcd t1``  admit a prompt of four blocks, with a salt if there is one
``write A 2``           A has written two blocks; ``rest`` the whole prompt; alone block by block
``end A``, ``abort A``  the request leaves
``look_up B abx``       what the prompt would reuse
``evict_state A 2``, ``evict_block A 2``  at the boundary after two blocks, the second block
``reset``               forget everything
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from k3core.errors import K3Error, require, require_choice, require_type

MAX_PROMPTS, MAX_STEPS = 6, 60
OWN = "own"
_BLOCKS = r"([A-Z])(?: ([a-z]{1,5})(?: (\w{1,8}))?)?"  # five columns are drawn
_AT = r"([A-Z]) ([1-5])"
_FORMS = {
    "register": _BLOCKS,
    "look_up": _BLOCKS,
    "write": r"([A-Z])(?: ([1-5]|rest))?",
    "end": "([A-Z])",
    "abort": "([A-Z])",
    "evict_state": _AT,
    "evict_block": _AT,
    "reset": "",
}
FORMS = (
    "register A abc, register A abc salt, look_up A abc, write A, write A 2, write A rest, end A, "
    "abort A, evict_state A 2, evict_block A 2, reset"
)


class Step(NamedTuple):
    """One operation on the request ``name``.

    Attributes:
        blocks: letters, one per block of tokens: equal letters, equal tokens.
        upto: blocks written so far, -1 for the whole prompt, or the boundary that is evicted.
    """

    action: str
    name: str = ""
    blocks: str = ""
    upto: int = 0
    salt: str = ""


def parse_steps(text: str) -> tuple[Step, ...]:
    """The operations of a text, separated by commas or lines.

    Raises:
        K3Error: naming the first operation that is none, or that its prompts do not allow.
    """
    parts = [part.strip() for part in re.split(r"[,;\n]", require_type("steps", text, str))]
    prompts: dict[str, tuple[str, str]] = {}
    steps = [
        step
        for number, part in enumerate(filter(None, parts), 1)
        for step in _read(f"step {number}, {part!r}", " ".join(part.split()), prompts)
    ]
    require(bool(steps), f"steps={text!r} holds no operation; allowed: {FORMS}")
    require(len(steps) <= MAX_STEPS, f"{len(steps)} operations; allowed: at most {MAX_STEPS}")
    require(len(prompts) <= MAX_PROMPTS, f"{len(prompts)} prompts; allowed: at most {MAX_PROMPTS}")
    return tuple(steps)


def _read(where: str, part: str, prompts: dict[str, tuple[str, str]]) -> Iterator[Step]:
    action, _, rest = part.partition(" ")
    found = re.fullmatch(_FORMS.get(action, "(?!)"), rest)
    if found is None:
        raise K3Error(f"{where}: no such operation; allowed: {FORMS}")
    if action == "reset":
        yield Step(action)
        return
    name, given, *salt = found.groups() if found.re.groups > 1 else (found[1], None)
    if salt and given:
        asked = (given, salt[0] or "")
        known = prompts.setdefault(name, asked)
        require(
            known == asked,
            f"{where}: {name} is {' '.join(filter(None, known))}; take another letter",
        )
    require(name in prompts, f"{where}: {name} has no blocks yet; register or look it up first")
    blocks, its_salt = prompts[name]
    if action in ("end", "abort"):
        yield Step(action, name)
    elif action in ("register", "look_up"):
        yield Step(action, name, blocks, salt=its_salt)
    elif given is None or given == "rest":
        chunks = range(1, len(blocks) + 1) if given is None else ()
        yield from (Step(action, name, blocks, count) for count in (*chunks, -1))
    else:
        require(int(given) <= len(blocks), f"{where}: {name} has {len(blocks)} blocks")
        yield Step(action, name, blocks, int(given))


TEXTS: Mapping[str, str] = {
    "turns": "register A abc, write A, end A, look_up B abcd, register B, write B 4, write B rest, "
    "end B, look_up C abcde",
    "branch": "register A abcd, write A, end A, look_up B abxy, register B, write B, end B, "
    "look_up C abuv",
    "abort": "register A abcd, look_up B abcd, write A 1, write A 2, look_up B, abort A, look_up B",
    "together": "register A abc, register B abc, look_up C abcd, write A, look_up C, write B, "
    "end A, end B",
    "evict": "register A abc, write A, end A, look_up B abcd, evict_state A 3, look_up B, "
    "evict_block A 1, look_up B, reset",
    "full": "register A abcd, write A, end A, look_up A, register B mnop, write B, look_up A, "
    "register C uvwx, look_up A, end B",
    "salt": "register A abc t1, write A, end A, look_up B abcd t2, look_up C abcd t1, register B, "
    "write B, end B, look_up D abcde t2",
}
SCENARIOS: Mapping[str, tuple[Step, ...]] = {
    name: parse_steps(text) for name, text in TEXTS.items()
}


@dataclass(frozen=True)
class Script:
    """The operations of one of ``SCENARIOS``, or of the reader's own text.

    Raises:
        K3Error: unknown scenario, or a bad text.
    """

    scenario: str
    own: str = ""

    def __post_init__(self) -> None:
        require_choice("scenario", self.scenario, (*SCENARIOS, OWN))
        self.steps  # noqa: B018  a bad text is refused at once

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return parse_steps(self.own) if self.scenario == OWN else SCENARIOS[self.scenario]

    @property
    def first_lookup(self) -> int:
        """Steps done when what was written, or evicted, is looked up; all of them without one."""
        actions = [step.action for step in self.steps]
        start = next((actions.index(a) for a in ("evict_block", "write") if a in actions), 0)
        found = "look_up" in actions[start:]
        return actions.index("look_up", start) + 1 if found else len(actions)


def script(scenario: str = "turns", own: str = "") -> Script:
    """A scenario as a study of plain values; arguments and errors as in ``Script``."""
    return Script(scenario, own)
