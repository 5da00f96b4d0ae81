"""V36-V44: decoding, drafts, statistics, events."""

import pytest

from k3core.prefix_cache import CLEARED, REMOVED, STORED, PromptHashes
from tests.peer_cases.common import hit, make, serve


def test_v36_a_block_appears_when_its_last_token_is_computed():
    manager = make(20, groups=2)
    manager.admit("a", range(510))
    manager.computed("a", 510)
    for at in range(510, 514):
        manager.extend("a", [at])
        manager.grow("a", at + 1)
        manager.computed("a", at + 1)
        entries = manager.cache.num_blocks, manager.cache.num_checkpoints
        assert entries == ((1, 2) if at + 1 >= 512 else (0, 0))
    assert hit(manager, range(513)) == 512


def test_v37_scheduled_drafts_publish_nothing():
    manager = make(20, groups=2)
    manager.admit("a", range(508))
    manager.computed("a", 508)
    manager.extend("a", [508])
    assert manager.grow("a", 509 + 8) is not None
    assert (manager.cache.num_blocks, len(manager.pages("a"))) == (0, 2)
    manager.computed("a", 509)
    assert manager.cache.num_blocks == 0
    assert hit(manager, range(600)) == 0


def test_v38_fewer_drafts_than_before_need_no_pages():
    manager = make(20, 16)
    manager.admit("a", range(20))
    manager.computed("a", 20)
    assert len(manager.grow("a", 21 + 16).pages) == 1
    shrunk = manager.grow("a", 21 + 1)
    assert (shrunk.pages, shrunk.copies) == ((), ())
    manager.check()


def test_v41_a_request_that_may_not_read_still_writes_and_is_not_counted():
    manager = make(20, 16)
    serve(manager, "a", range(33), [16, 16, 1])
    counted = manager.window.num_requests
    again = serve(manager, "b", range(33), [16, 17], read_cache=False)
    assert again.reused_tokens == 0
    assert manager.window.num_requests == counted
    serve(manager, "c", range(100, 133), [16, 16, 1], read_cache=False)
    assert hit(manager, range(100, 133)) == 32


def test_v43_events_in_order():
    manager = make(3, 16, groups=0, record_events=True)
    serve(manager, "a", range(48))
    chain = PromptHashes(range(48), 16).block_hashes
    assert manager.cache.take_events() == ((STORED, chain, None, None),)
    serve(manager, "b", range(100, 148))
    events = manager.cache.take_events()
    assert [event.kind for event in events] == [REMOVED] * 3 + [STORED]
    assert [event.block_hashes[0] for event in events[:3]] == list(chain[::-1])
    assert len(events[3].block_hashes) == 3
    assert manager.reset()
    assert [event.kind for event in manager.cache.take_events()] == [CLEARED]
    assert manager.cache.take_events() == ()


@pytest.mark.parametrize(("num_tokens", "expected"), [(2049, 1536), (513, 0), (2048, 1024)])
def test_v44_a_drafter_gives_up_one_block(num_tokens, expected):
    manager = make(40, groups=3, dropped_blocks=1)
    serve(manager, "a", range(2055), [512, 512, 512, 512, 7])
    found = manager.lookup(range(num_tokens))
    assert found.matched_tokens == expected
    assert found.loss_account()["drafter_drop"] == 512
    assert found.reason == "drafter_drop"
