"""Random operations on the prefix cache against a naive model of dicts keyed by token tuples."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from k3core.errors import CacheError
from k3core.prefix_cache import PrefixCache, PromptHashes

BLOCK, GROUPS = 2, 2
PROMPTS = (  # few and overlapping, so that operations meet
    (0,),
    (0, 0, 0),
    (0, 0, 0, 0),
    (0, 0, 0, 0, 1),
    (0, 0, 1, 1, 0),
    (0, 0, 0, 0, 1, 1, 0),
)


class Model:
    """The rules of visibility, told with token tuples and no hash."""

    def __init__(self):
        self.visible = {}  # (prefix, group or None) -> payload
        self.pending = {}  # ticket -> {(prefix, group or None): payload}
        self.evicted = set()

    @staticmethod
    def prefixes(tokens):
        return [tokens[:at] for at in range(BLOCK, len(tokens) + 1, BLOCK)]

    def known(self, prefix):
        return (prefix, None) in self.visible or any(
            (prefix, None) in mine for mine in self.pending.values()
        )

    def deepest_known(self, tokens):
        """Ready, registered or evicted, without a gap."""
        deepest = 0
        for prefix in self.prefixes(tokens):
            gone = (prefix, None) in self.evicted
            if deepest != len(prefix) - BLOCK or not (self.known(prefix) or gone):
                break
            deepest = len(prefix)
        return deepest

    def oldest_ticket(self, tokens):
        for prefix in reversed(self.prefixes(tokens)):
            owners = [number for number, mine in self.pending.items() if (prefix, None) in mine]
            if owners:
                return min(owners)
        return None

    def publish(self, number, prefixes):
        mine = self.pending.get(number, {})
        for key in [key for key in mine if key[0] in prefixes]:
            self.visible.setdefault(key, mine[key])
            self.evicted.discard(key)
            del mine[key]

    def lookup(self, tokens):
        matched = known = 0
        for prefix in self.prefixes(tokens):
            if matched == len(prefix) - BLOCK and (prefix, None) in self.visible:
                matched = len(prefix)
        for prefix in self.prefixes(tokens):
            if known == len(prefix) - BLOCK and self.known(prefix):
                known = len(prefix)
        usable = 0
        for at in range(BLOCK, matched + 1, BLOCK):
            if at < len(tokens) and all((tokens[:at], g) in self.visible for g in range(GROUPS)):
                usable = at
        return usable, matched, known


class CacheAgainstModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.cache = PrefixCache(BLOCK, GROUPS)
        self.model = Model()
        self.tickets = []  # (Registration, tokens)
        self.counter = 0

    def payload(self):
        self.counter += 1
        return self.counter

    @rule(tokens=st.sampled_from(PROMPTS))
    def register(self, tokens):
        prefixes = self.model.prefixes(tokens)
        payloads = [self.payload() for _ in prefixes]
        ticket = self.cache.register(tokens, payloads)
        self.tickets.append((ticket, tokens))
        self.model.pending[ticket.number] = {
            (prefix, None): payload
            for prefix, payload in zip(prefixes, payloads, strict=True)
            if (prefix, None) not in self.model.visible
        }

    @rule(data=st.data(), by_ticket=st.booleans())
    def mark_ready(self, data, by_ticket):
        if not self.tickets:
            return
        ticket, tokens = data.draw(st.sampled_from(self.tickets))
        upto = data.draw(st.integers(0, len(tokens)))
        prefixes = [prefix for prefix in self.model.prefixes(tokens) if len(prefix) <= upto]
        number = ticket.number if by_ticket else self.model.oldest_ticket(tokens[:upto])
        mine = self.model.pending.get(number, {})
        if by_ticket:
            fine = any((prefix, None) in mine for prefix in prefixes) or all(
                (prefix, None) in self.model.visible for prefix in prefixes
            )
        else:
            fine = all(self.model.known(prefix) for prefix in prefixes)
        if not fine:
            with pytest.raises(CacheError):
                self.cache.mark_ready(ticket if by_ticket else tokens, upto)
            return
        self.cache.mark_ready(ticket if by_ticket else tokens, upto)
        self.model.publish(number, prefixes)

    @rule(data=st.data(), group=st.integers(0, GROUPS - 1), by_ticket=st.booleans())
    def persist(self, data, group, by_ticket):
        if not self.tickets:
            return
        ticket, tokens = data.draw(st.sampled_from(self.tickets))
        prefixes = self.model.prefixes(tokens)
        if not prefixes:
            return
        prefix = data.draw(st.sampled_from(prefixes))
        number = ticket.number if by_ticket else self.model.oldest_ticket(prefix)
        mine = self.model.pending.get(number, {})
        visible = (prefix, None) in self.model.visible
        if by_ticket:
            fine = visible or (prefix, None) in mine
        else:
            fine = all(self.model.known(one) for one in self.model.prefixes(prefix))
        payload = self.payload()
        call = (ticket if by_ticket else tokens, len(prefix), group, payload)
        if not fine:
            with pytest.raises(CacheError):
                self.cache.persist_checkpoint(*call)
            return
        key = (prefix, group)
        kept = key not in self.model.visible and (visible or key not in mine)
        assert self.cache.persist_checkpoint(*call) is kept
        if kept and visible:
            self.model.visible[key] = payload
        elif kept:
            mine[key] = payload

    @rule(data=st.data(), by_ticket=st.booleans())
    def abort(self, data, by_ticket):
        if not self.tickets:
            return
        ticket, tokens = data.draw(st.sampled_from(self.tickets))
        number = ticket.number if by_ticket else self.model.oldest_ticket(tokens)
        dropped = self.cache.abort(ticket if by_ticket else tokens)
        assert sorted(dropped) == sorted(self.model.pending.pop(number, {}).values())

    @rule(data=st.data())
    def evict(self, data):
        if not self.model.visible:
            return
        key = data.draw(st.sampled_from(sorted(self.model.visible, key=str)))
        prefix, group = key
        one = PromptHashes(prefix, BLOCK).block_hashes[-1]
        evict = self.cache.evict_block
        payload = evict(one) if group is None else self.cache.evict_checkpoint(one, group)
        assert payload == self.model.visible.pop(key)
        self.model.evicted.add(key)

    @invariant()
    def lookups_agree(self):
        for tokens in PROMPTS:
            hit = self.cache.lookup(tokens)
            usable, matched, known = self.model.lookup(tokens)
            assert (hit.matched_tokens, hit.mla_tokens) == (usable, matched)
            assert hit.registered_tokens == known
            assert hit.block_payloads == tuple(
                self.model.visible[prefix, None] for prefix in self.model.prefixes(tokens[:usable])
            )
            assert hit.checkpoint_payloads == tuple(
                self.model.visible[tokens[:usable], g] for g in range(GROUPS) if usable
            )
            assert sum(hit.loss_account().values()) == len(tokens)
            assert min(hit.loss_account().values()) >= 0
            assert (hit.reason is None) == (hit.matched_tokens == hit.known_tokens)
            assert hit.known_tokens == self.model.deepest_known(tokens)

    @invariant()
    def accounting_is_whole(self):
        self.cache.check()
        blocks = [key for key in self.model.visible if key[1] is None]
        assert self.cache.num_blocks == len(blocks)
        assert self.cache.num_checkpoints == len(self.model.visible) - len(blocks)


TestCacheAgainstModel = CacheAgainstModel.TestCase
TestCacheAgainstModel.settings = settings(max_examples=70, stateful_step_count=50)
