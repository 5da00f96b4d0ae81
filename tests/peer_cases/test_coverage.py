"""Every peer case has a test under its id, or a reason."""

import re
from pathlib import Path

from tests.peer_cases import CASES, NOT_APPLICABLE

TESTS = Path(__file__).parent.parent
NAMED = re.compile(r"def test_((?:[vhs]\d+_)+)", re.IGNORECASE)


def test_no_case_is_missing():
    files = [
        *TESTS.glob("peer_cases/test_*.py"),
        TESTS / "test_prefix_cache.py",
        TESTS / "test_prompt_hashes.py",
    ]
    found = set()
    for file in files:
        for ids in NAMED.findall(file.read_text(encoding="utf-8")):
            found.update(ids.strip("_").split("_"))
    assert set(CASES) - found == set(NOT_APPLICABLE)
    assert found <= set(CASES)
