"""Speculative decoding of the engine: drafts cost steps, never a token or a bit."""

from __future__ import annotations

from collections.abc import Sequence

from k3core.engine import (
    NoisyReplayDrafter,
    PromptLookupDrafter,
)
from tests.engine_helpers import (
    MODEL,
    MODEL_8,
    SMALL,
    engine,
    prompt,
    same_bits,
)


class Script:
    """Proposes what it was told, step by step."""

    def __init__(self, *proposals: tuple[int, ...]) -> None:
        self.proposals = list(proposals)

    def propose(self, tokens: Sequence[int], num_drafts: int) -> tuple[int, ...]:
        return self.proposals.pop(0) if self.proposals else ()


def test_every_number_of_kept_drafts_gives_the_plain_text() -> None:
    text = prompt(35)
    plain = engine().generate(text, 12)
    for kept in range(5):
        right = plain.tokens[1 : 1 + kept]
        wrong = tuple((t + 1) % SMALL.vocab_size for t in plain.tokens[1 + kept : 5])
        result = engine().generate(text, 12, Script((*right, *wrong)))
        assert result.verify_steps[0].num_committed == 1 + kept
        assert result.verify_steps[0].num_rejected == 4 - kept
        assert same_bits(result, plain)


def test_steps_without_drafts_between_steps_with_drafts_change_nothing() -> None:
    text = prompt(35)
    plain = engine().generate(text, 12)
    script = Script((), plain.tokens[2:4], (), (0, 0, 0, 0), ())
    result = engine().generate(text, 12, script)
    assert [step.num_tokens for step in result.verify_steps][:5] == [1, 3, 1, 5, 1]
    assert same_bits(result, plain)


def test_perfect_drafts_take_the_fewest_steps_and_wrong_ones_the_most() -> None:
    text = prompt(35)
    plain = engine().generate(text, 11)
    steps = {}
    for quality in (0.0, 1.0):
        drafter = NoisyReplayDrafter((*text, *plain.tokens), quality, SMALL.vocab_size)
        result = engine().generate(text, 11, drafter)
        assert same_bits(result, plain)
        steps[quality] = len(result.verify_steps)
    assert steps == {0.0: 10, 1.0: 2}


def test_drafts_never_go_past_the_requested_length() -> None:
    text = prompt(20)
    plain = engine().generate(text, 4)
    drafter = NoisyReplayDrafter((*text, *plain.tokens), 1.0, SMALL.vocab_size)
    result = engine().generate(text, 4, drafter)
    assert result.tokens == plain.tokens
    assert [step.num_tokens for step in result.verify_steps] == [3]


def test_step_accounts_add_up() -> None:
    text = prompt(50)
    plain = engine().generate(text, 15)
    drafter = NoisyReplayDrafter((*text, *plain.tokens), 0.6, SMALL.vocab_size, seed=1)
    result = engine().generate(text, 15, drafter)
    assert sum(len(step.new_tokens) for step in result.steps) == 15
    assert 0 < result.num_kept_drafts < result.num_drafts
    position = 0
    for step in result.steps:
        assert step.start == position
        position += step.num_committed
        assert step.flops == MODEL.flops(step.num_tokens, step.start)
    assert position == 50 + 14  # the last output token was never fed back
    assert result.tokens_per_step == 14 / len(result.verify_steps)
    assert result.prefill_flops == sum(s.flops for s in result.steps if s.kind == "prefill")


def test_interleaved_requests_do_not_see_each_other() -> None:
    serving = engine(MODEL_8)
    texts = [prompt(40, seed) for seed in range(3)]
    alone = [engine(MODEL_8).generate(text, 8) for text in texts]
    requests = [
        serving.open(text, 8, NoisyReplayDrafter((*text, *r.tokens), 0.5, SMALL.vocab_size))
        for text, r in zip(texts, alone, strict=True)
    ]
    while not all(request.done for request in requests):
        for request in requests:
            if not request.done:
                serving.step(request)
    for request, expected in zip(requests, alone, strict=True):
        assert same_bits(serving.result(request), expected)
        serving.close(request)
    serving.check()


# Drafters


def test_prompt_lookup_continues_the_latest_longest_match() -> None:
    drafter = PromptLookupDrafter(max_ngram=2)
    assert drafter.propose([1, 2, 9, 1, 2, 7, 8, 1, 2], 2) == (7, 8)
    assert drafter.propose([5, 2, 9, 1, 2], 1) == (9,)
    assert drafter.propose([1, 2, 3], 4) == ()
    assert drafter.propose([1], 4) == ()


def test_noisy_replay_errs_at_its_rate_and_at_fixed_positions() -> None:
    text = list(prompt(4000))
    drafter = NoisyReplayDrafter(text, 0.75, SMALL.vocab_size, seed=5)
    proposed = drafter.propose(text[:100], 3900)
    share = sum(a == b for a, b in zip(proposed, text[100:], strict=True)) / 3900
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 3900) ** 0.5
    assert drafter.propose(text[:1000], 50) == proposed[900:950]


def test_a_prompt_lookup_drafter_gives_the_plain_text() -> None:
    text = prompt(20) * 3
    serving = engine()
    plain = serving.generate(text, 30)
    looked_up = engine().generate(text, 30, PromptLookupDrafter())
    assert looked_up.num_drafts > 0
    assert same_bits(looked_up, plain)
