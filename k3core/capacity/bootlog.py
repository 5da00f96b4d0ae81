"""Recognise lines of vLLM and SGLang boot logs.

`read_log` only reads; `k3core.capacity.logsolve` turns what was read back into blocks, slots and
drafts. A line that repeats with another value is kept as a conflict, not silently overwritten, and
one whose value nothing could have printed is kept apart as impossible, not rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from k3core.capacity.memory import MAX_COUNT
from k3core.capacity.model import MAX_HEADS, MAX_LAYERS
from k3core.errors import CapacityError, require, require_type

MAX_LOG_CHARS = 5_000_000
CACHE_MODES = ("none", "align", "all")
_MAX_TOKENS = 2**40
_MAX_GIB = 2**20
_MAX_BLOCK = 2**24
_MAX_DRAFTS = 1024
_COLOURS = re.compile(r"[\x1b\u241b\ufffd]\[[0-?]*[ -/]*[@-~]|\[\d+(?:;\d+)*m")


@dataclass(frozen=True)
class Line:
    """One recognised value.

    Attributes:
        code: what it is, for example ``block_tokens``.
        value: number or word.
        number: 1-based line of the log.
        text: the line, shortened.
        step: one unit of the last printed digit, of a size in GiB.
    """

    code: str
    value: float | str
    number: int
    text: str
    step: float = 0.0


@dataclass(frozen=True)
class BootLog:
    """What a log says.

    Attributes:
        engine: ``vllm``, ``sglang`` or an empty string when no line was recognised; of both, the
            one with more lines.
        lines: recognised lines, in order.
        conflicts: codes that occur with different values; ``also-sglang`` in a log of vLLM, and
            the reverse, for lines of the other engine.
        impossible: recognised lines whose value cannot be, the first of each code: a fraction of
            a count, nothing, or beyond any machine.
    """

    engine: str
    lines: tuple[Line, ...]
    conflicts: tuple[str, ...]
    impossible: tuple[Line, ...] = ()

    def get(self, code: str) -> float | None:
        """The first number of this code, or None."""
        for line in self.lines:
            if line.code == code and not isinstance(line.value, str):
                return line.value
        return None

    def word(self, code: str) -> str:
        """The first word of this code, or an empty string."""
        for line in self.lines:
            if line.code == code and isinstance(line.value, str):
                return line.value
        return ""

    def step(self, code: str) -> float:
        """One unit of the last digit that was printed of this size in GiB."""
        return next((line.step for line in self.lines if line.code == code), 0.0)


Reader = Callable[["re.Match[str]"], "tuple[float | str, float] | None"]


def _float(text: str) -> float:
    return float(text.replace(",", "").replace("_", ""))


def _real(least: float, most: float) -> Reader:
    def read(match: re.Match[str]) -> tuple[float, float] | None:
        value = _float(match.group(1))
        return (value, 0.0) if least <= value <= most else None

    return read


def _count(least: int, most: int) -> Reader:
    def read(match: re.Match[str]) -> tuple[float, float] | None:
        value = _float(match.group(1))
        return (value, 0.0) if least <= value <= most and value.is_integer() else None

    return read


def _gib(match: re.Match[str]) -> tuple[float, float] | None:
    """A size in GiB; engines print GB for 2**30 bytes too."""
    unit = {"k": 2**-20, "m": 2**-10, "g": 1, "t": 2**10}[match.group(2).lower()]
    value = _float(match.group(1)) * unit
    decimals = len(match.group(1).partition(".")[2])
    return (value, unit * 10.0**-decimals) if 0 <= value <= _MAX_GIB else None


def _some_gib(match: re.Match[str]) -> tuple[float, float] | None:
    found = _gib(match)
    return found if found and found[0] > 0 else None


def _word(match: re.Match[str]) -> tuple[str, float]:
    return match.group(1).strip("'\" ").lower(), 0.0


def _mode(match: re.Match[str]) -> tuple[str, float] | None:
    word = _word(match)
    return word if word[0] in CACHE_MODES else None


_N = r"(-?\d[\d,_]*(?:\.\d+)?)"
_GIB = rf"{_N}\s*([KMGT])i?B"
_TOKENS, _SHARE, _BLOCKS = _count(1, _MAX_TOKENS), _real(0, 1e6), _count(1, MAX_COUNT)

# code, engine, pattern, reader. One line of a log may match several patterns.
_PATTERNS: tuple[tuple[str, str, re.Pattern[str], Reader], ...] = tuple(
    (code, engine, re.compile(pattern, re.IGNORECASE), reader)
    for code, engine, pattern, reader in (
        (
            "block_tokens",
            "vllm",
            rf"Setting attention block size to {_N} tokens",
            _count(1, _MAX_BLOCK),
        ),
        ("page_padding", "vllm", rf"Padding mamba page size by {_N}\s*%", _SHARE),
        ("padding_layers", "vllm", rf"Add {_N} padding layers", _count(0, MAX_LAYERS)),
        ("layer_padding", "vllm", rf"padding layers, may waste at most {_N}\s*%", _SHARE),
        ("cache_gib", "vllm", rf"Available KV cache memory:\s*{_GIB}", _some_gib),
        ("printed_tokens", "vllm", rf"GPU KV cache size:\s*{_N} tokens", _TOKENS),
        ("max_model_len", "vllm", rf"Maximum concurrency for {_N} tokens per request", _TOKENS),
        ("concurrency", "vllm", rf"tokens per request:\s*{_N}\s*x", _real(0, MAX_COUNT)),
        ("num_blocks", "vllm", rf"(?:num_gpu_blocks|# GPU blocks)\D{{0,4}}?{_N}", _BLOCKS),
        ("cache_mode", "vllm", r"mamba[_ -]cache[_ -]mode\W+(?:is |set to )*'?(\w+)", _mode),
        (
            "drafts",
            "",
            rf"num[_-]speculative[_-]tokens'?\"?\s*[:=]\s*{_N}",
            _count(0, _MAX_DRAFTS),
        ),
        (
            "tp",
            "",
            rf"(?:tensor[_-]parallel[_-]size|tp[_-]size)'?\"?\s*[:=\s]\s*{_N}",
            _count(1, MAX_HEADS),
        ),
        ("slots", "sglang", rf"max_mamba_cache_size:\s*{_N}", _BLOCKS),
        ("conv_gib", "sglang", rf"\bconv_state size:\s*{_GIB}", _gib),
        ("ssm_gib", "sglang", rf"\bssm_state size:\s*{_GIB}", _gib),
        ("draft_state_gib", "sglang", rf"intermediate_ssm_state_cache size:\s*{_GIB}", _gib),
        ("pool_tokens", "sglang", rf"KV Cache is allocated.*#tokens:\s*{_N}", _TOKENS),
        ("kv_gib", "sglang", rf"#tokens:.*\bKV size:\s*{_GIB}", _gib),
        ("kv_dtype", "sglang", r"KV Cache is allocated\. dtype: ([\w.]+)", _word),
        ("max_total_tokens", "sglang", rf"max_total_num_tokens={_N}", _TOKENS),
        ("max_running", "sglang", rf"max_running_requests={_N}", _BLOCKS),
        (
            "max_running",
            "sglang",
            rf"max_running_requests (?:is |was )?(?:capped|reduced|limited|adjusted).*?\bto {_N}",
            _BLOCKS,
        ),
    )
)


def read_log(text: str) -> BootLog:
    """All recognised lines of a log.

    Raises:
        CapacityError: the text is too long.
    """
    require_type("text", text, str, CapacityError)
    require(
        len(text) <= MAX_LOG_CHARS,
        f"the log has {len(text)} characters; at most {MAX_LOG_CHARS} are read",
        CapacityError,
    )
    lines: list[Line] = []
    first: dict[str, float | str] = {}
    conflicts: dict[str, None] = {}
    impossible: dict[str, Line] = {}
    engines: dict[str, int] = {}
    for number, raw in enumerate(_COLOURS.sub("", text).splitlines(), 1):
        for code, engine, pattern, reader in _PATTERNS:
            match = pattern.search(raw[:4000])
            if match is None:
                continue
            found, shown = reader(match), raw.strip()[:200]
            if found is None:
                impossible.setdefault(code, Line(code, match.group(1)[:80], number, shown))
            elif code in first:
                if first[code] != found[0]:
                    conflicts[code] = None
                continue
            else:
                first[code] = found[0]
                lines.append(Line(code, found[0], number, shown, found[1]))
            if engine:
                engines[engine] = engines.get(engine, 0) + 1
    named = max(engines, key=lambda name: engines[name], default="")
    also = (f"also-{name}" for name in engines if name != named)
    return BootLog(named, tuple(lines), (*conflicts, *also), tuple(impossible.values()))
