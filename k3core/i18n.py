"""The one function through which every text that a user sees passes.

Texts live in ``k3core/locales/<language>/<subsystem>.toml``; the key of a text is the file's stem
followed by its dotted path in the file, for example ``decode.metric.snapshots``. A text may hold
``{name}`` fields, filled from the keyword arguments.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

LOCALES_DIR = Path(__file__).parent / "locales"
DEFAULT_LANGUAGE = "en"
LANGUAGE_NAMES = {"en": "English", "zh": "中文"}


@lru_cache(maxsize=1)
def languages() -> tuple[str, ...]:
    """Codes of the languages that have a catalogue, the default language first."""
    found = sorted(path.name for path in LOCALES_DIR.iterdir() if path.is_dir())
    return (DEFAULT_LANGUAGE, *(code for code in found if code != DEFAULT_LANGUAGE))


def _flatten(prefix: str, node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        key = f"{prefix}.{name}"
        if isinstance(value, Mapping):
            yield from _flatten(key, value)
        else:
            yield key, str(value).strip()


@lru_cache(maxsize=8)
def catalogue(lang: str = DEFAULT_LANGUAGE) -> Mapping[str, str]:
    """All texts of one language by key; keys that it lacks come from the default language."""
    texts = {} if lang == DEFAULT_LANGUAGE else dict(catalogue(DEFAULT_LANGUAGE))
    for path in sorted((LOCALES_DIR / lang).glob("*.toml")):
        texts.update(_flatten(path.stem, tomllib.loads(path.read_text(encoding="utf-8"))))
    return texts


def has_text(key: str, lang: str = DEFAULT_LANGUAGE) -> bool:
    """Whether the catalogue of ``lang`` (or of the default language) knows ``key``."""
    return key in catalogue(lang)


def t(key: str, lang: str = DEFAULT_LANGUAGE, **values: object) -> str:
    """The text of ``key`` in ``lang`` with its fields filled.

    A key without a text comes back between white square brackets, so that a test, and a person,
    sees it at once instead of the page failing.
    """
    text = catalogue(lang).get(key)
    if text is None:
        return f"⟦{key}⟧"
    return text.format(**values) if values else text
