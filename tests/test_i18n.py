"""Texts: one function, one catalogue per language."""

import re
from pathlib import Path

import pytest

from k3core import i18n

ROOT = Path(__file__).parent.parent


def test_a_text_is_found_by_file_stem_and_dotted_path():
    assert i18n.t("common.page.decode") == "Speculative Replay"


def test_fields_of_a_text_are_filled():
    assert "TP" in i18n.t("common.bad_url_value", name="TP", raw="x", value=8)


def test_a_missing_text_shows_its_key_instead_of_failing():
    assert i18n.t("common.no_such_text") == "⟦common.no_such_text⟧"


def test_the_default_language_comes_first():
    assert i18n.languages()[0] == i18n.DEFAULT_LANGUAGE


@pytest.mark.parametrize("lang", i18n.languages())
def test_every_catalogue_has_the_same_fields_as_the_default(lang):
    fields = re.compile(r"{(\w+)}")
    default = i18n.catalogue()
    for key, text in i18n.catalogue(lang).items():
        assert set(fields.findall(text)) == set(fields.findall(default[key])), key


def test_texts_written_in_figures_are_in_the_catalogue():
    known = i18n.catalogue()
    slugs = {path.stem for path in (ROOT / "k3core/locales/en").glob("*.toml")}
    missing = [
        f"{path.name}: {key}"
        for path in (ROOT / "k3core/figures").rglob("*.py")
        for key in re.findall(r'"([a-z_]+(?:\.[a-z0-9_]+)+)"', path.read_text())
        if key.split(".")[0] in slugs and key not in known
    ]
    assert missing == []
