"""The words of one page: its own catalogue first, then the common one."""

from __future__ import annotations

import re
from typing import NamedTuple

from k3core import i18n

_TITLE_LENGTH = 18  # a longer axis title would push the numbers of a table off a phone


class Texts(NamedTuple):
    """Catalogue ``slug`` in one language.

    Attributes:
        slug: name of the page's catalogue.
        lang: language code.
    """

    slug: str
    lang: str

    def t(self, key: str, **values: object) -> str:
        """Text ``<slug>.<key>``, or ``common.<key>`` when the page has none of its own.

        A percent sign stays on the line of its number.
        """
        own = f"{self.slug}.{key}"
        key = own if i18n.has_text(own, self.lang) else f"common.{key}"
        if not i18n.has_text(key, self.lang):
            key = own
        return i18n.t(key, self.lang, **values).replace(" %", "\u00a0%")

    def has_own(self, key: str) -> bool:
        """Whether ``<slug>.<key>`` is in the catalogue."""
        return i18n.has_text(f"{self.slug}.{key}", self.lang)

    def optional(self, key: str) -> str | None:
        """The text of ``key``, None when neither catalogue has one."""
        known = self.has_own(key) or i18n.has_text(f"common.{key}", self.lang)
        return self.t(key) if known else None

    def option(self, code: object) -> str:
        """The text ``option.<code>``, or the code itself."""
        return self.optional(f"option.{code}") or str(code)

    def column(self, name: str) -> tuple[str, str | None]:
        """Title of a table's column and, where that is shortened, what it means.

        The text ``column.<name>``, else the title of the chart axis of that name without its
        bracket, else the name in words.
        """
        own = self.optional(f"column.{name}")
        if own is not None:
            return own, None
        full = self.optional(f"axis.{name}")
        short = re.sub(r"\s*\([^)]*\)$", "", full or "")
        if not 0 < len(short) <= _TITLE_LENGTH:
            parts = name.removeprefix("num_").split("_")
            short = " ".join(
                i18n.catalogue(self.lang).get(f"common.label.{part}", part) for part in parts
            )
        return short, None if short == full else full
