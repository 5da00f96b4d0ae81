"""Prompt hashes: the chain, its encoding, and how it grows with the prompt."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from struct import pack

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3core.errors import CacheError
from k3core.prefix_cache import (
    PromptHashes,
    chained_hash,
)

B = 512


def test_v25_block_hashes_match_a_recomputation_by_hand():
    tokens = [7, 0, 2**40, 3, 5, 11]
    first = sha256(b"" + pack("<3q", 7, 0, 2**40)).digest()
    second = sha256(first + pack("<3q", 3, 5, 11)).digest()
    assert PromptHashes(tokens, 3).block_hashes == (first, second)
    assert chained_hash(first, [3, 5, 11]) == second


def test_v26_the_hash_is_the_same_in_another_process():
    code = "from k3core.prefix_cache import chained_hash; print(chained_hash(b'', [1, 2]).hex())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == chained_hash(b"", [1, 2]).hex()


@pytest.mark.parametrize(
    "tokens",
    [
        (1, 2, 3),
        range(1, 4),
        np.array([1, 2, 3]),
        np.array([1, 2, 3], dtype=np.uint16),
        np.array([1, 2, 3], dtype=">i4"),
        np.arange(6)[1:4],
        np.array([1, 9, 2, 9, 3])[::2],
        torch.tensor([1, 2, 3]),
        torch.tensor([1, 2, 3], dtype=torch.int32),
    ],
)
def test_equal_tokens_hash_equally_whatever_holds_them(tokens):
    assert chained_hash(b"p", tokens) == chained_hash(b"p", [1, 2, 3])


@pytest.mark.parametrize(
    "tokens",
    [
        [1.5],
        np.array([1.0]),
        torch.tensor([1.0]),
        np.array([True]),
        [[1, 2]],
        np.zeros((1, 2), dtype=int),
        ["a"],
        [2**63],
        np.array([2**63], dtype=np.uint64),
        5,
    ],
)
def test_tokens_that_are_no_ids_are_refused(tokens):
    with pytest.raises(CacheError):
        chained_hash(b"", tokens)


def test_a_parent_that_is_not_bytes_is_refused():
    with pytest.raises(CacheError, match="parent"):
        chained_hash("", [1])


def test_v29_v32_appending_gives_the_hashes_of_the_whole_and_never_of_a_partial_block():
    grown = PromptHashes(range(7), 4)
    assert len(grown.block_hashes) == 1
    grown.append([7])
    assert grown.block_hashes == PromptHashes(range(8), 4).block_hashes
    assert len(PromptHashes(range(6), 3).block_hashes) == 2
    assert len(PromptHashes(range(5), 3).block_hashes) == 1


@given(st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=6), st.integers(1, 5))
def test_any_way_of_appending_gives_the_same_hashes(pieces, block):
    grown = PromptHashes((), block)
    for piece in pieces:
        grown.append(piece)
    whole = [token for piece in pieces for token in piece]
    assert grown.block_hashes == PromptHashes(whole, block).block_hashes
    assert grown.num_tokens == len(whole)


def test_appending_hashes_only_the_blocks_that_it_completes(monkeypatch):
    calls = []
    real = sha256

    def counting(*args):
        calls.append(args)
        return real(*args)

    monkeypatch.setattr("k3core.prefix_cache.block_hash.sha256", counting)
    prompt = PromptHashes(range(100), 10)
    assert len(calls) == 10
    prompt.append(range(9))
    assert len(calls) == 10
    prompt.append([1])
    assert len(calls) == 11


def test_a_later_block_with_equal_tokens_has_another_hash():
    first, second = PromptHashes([1, 2, 1, 2], 2).block_hashes
    assert first != second


def test_precomputed_hashes_must_fit_the_length_and_cannot_grow():
    with pytest.raises(CacheError, match="block_hashes"):
        PromptHashes.from_hashes([b"x"], 2 * B)
    with pytest.raises(CacheError, match="bytes"):
        PromptHashes.from_hashes([17], B)
    with pytest.raises(CacheError, match="cannot grow"):
        PromptHashes.from_hashes([b"x"], B + 3).append([1])
