"""V27-V34: what is part of a block's hash; the chain itself: tests/test_prompt_hashes.py."""

import hashlib

import pytest

from k3core.prefix_cache import MediaItem, PrefixCache, PromptHashes, root_parent
from k3core.prefix_cache.keys import encode_key
from tests.peer_cases.common import hit, make, serve


def salted(tokens, salt, block=16):
    return PromptHashes(tokens, block, root_parent(salt=salt))


def test_v27_a_salt_separates_tenants_in_both_stages():
    manager = make(20, 16, groups=2)
    serve(manager, "a", salted(range(55), "salt1"), [16, 16, 16, 7])
    assert hit(manager, salted(range(55), "salt1")) == 48
    other = manager.lookup(salted(range(55), "salt2"))
    assert (other.matched_tokens, other.mla_tokens) == (0, 0)
    assert not any(map(manager.cache.checkpoint_groups, other.block_hashes))
    assert hit(manager, range(55)) == 0
    plain, one, two = (salted(range(48), s).block_hashes for s in (None, "salt1", "salt2"))
    assert all(len({a, b, c}) == 3 for a, b, c in zip(plain, one, two, strict=True))


def test_v28_a_salt_named_like_an_adapter_shares_nothing_with_it():
    roots = [
        root_parent(salt="x"),
        root_parent(lora=("x", "")),
        root_parent(lora=("x", "/a")),
        root_parent(lora=("x", "/b")),
        root_parent(salt="x", lora=("x", "/a")),
        root_parent(lora=("x/a", "")),
        root_parent(),
    ]
    assert len(set(roots)) == len(roots)


def test_v28_an_encoded_key_is_never_as_long_as_tokens():
    for length in range(40):
        assert len(encode_key("mm", "a" * length, "0")) % 8 == 1


def test_v30_another_picture_in_a_block_changes_it_and_all_after_it():
    def hashes(name):
        return PromptHashes(range(12), 4, media=[MediaItem(name, 5, 7)]).block_hashes

    one, two, none = hashes("a"), hashes("b"), PromptHashes(range(12), 4).block_hashes
    assert one[0] == two[0] == none[0]
    assert all(len({a, b, c}) == 3 for a, b, c in zip(one[1:], two[1:], none[1:], strict=True))


def test_v30_media_grow_with_the_prompt():
    media = [MediaItem("a", 2, 9)]
    whole = PromptHashes(range(12), 4, media=media)
    grown = PromptHashes(range(3), 4, media=media)
    grown.append(range(3, 12))
    assert grown.block_hashes == whole.block_hashes
    moved = PromptHashes(range(12), 4, media=[MediaItem("a", 3, 9)])
    assert moved.block_hashes[0] != whole.block_hashes[0]


def test_v31_the_name_of_a_request_is_no_part_of_its_identity():
    manager = make(20, 16)
    serve(manager, "session-1", range(33), [16, 16, 1])
    assert serve(manager, "session-2", range(33)).reused_tokens == 32


def test_v33_a_block_is_hashed_once_over_lookup_registration_and_growth(monkeypatch):
    calls = []
    real = hashlib.sha256

    def counting(*args):
        calls.append(1)
        return real(*args)

    monkeypatch.setattr("k3core.prefix_cache.block_hash.sha256", counting)
    cache, prompt = PrefixCache(4), PromptHashes(range(9), 4)
    cache.lookup(prompt)
    cache.mark_ready(cache.register(prompt))
    cache.lookup(prompt)
    assert len(calls) == 2
    prompt.append([9, 10, 11])
    assert len(calls) == 3


def test_v34_a_coarser_block_has_the_hash_of_its_last_fine_block():
    prompt = PromptHashes(range(128), 16)
    assert prompt.coarse_hashes(32) == prompt.block_hashes[1::2]
    assert prompt.coarse_hashes(16) == prompt.block_hashes
    with pytest.raises(ValueError, match="multiple of 16"):
        prompt.coarse_hashes(24)
