"""Recognise lines of vLLM and SGLang boot logs.

`read_log` only reads; `k3core.capacity.logsolve` turns what was read back into blocks, slots and
drafts. A line that repeats with another value is kept as a conflict, not silently overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from k3core.errors import CapacityError, require, require_type

MAX_LOG_CHARS = 5_000_000


@dataclass(frozen=True)
class Line:
    """One recognised value.

    Attributes:
        code: what it is, for example ``block_tokens``.
        value: number or word.
        number: 1-based line of the log.
        text: the line, shortened.
    """

    code: str
    value: float | str
    number: int
    text: str


@dataclass(frozen=True)
class BootLog:
    """What a log says.

    Attributes:
        engine: ``vllm``, ``sglang`` or an empty string when no line was recognised.
        lines: recognised lines, in order.
        conflicts: codes that occur with different values.
    """

    engine: str
    lines: tuple[Line, ...]
    conflicts: tuple[str, ...]

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


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("_", ""))


def _word(text: str) -> str:
    return text.strip("'\" ").lower()


_N = r"([\d][\d,_]*(?:\.\d+)?)"
_GIB = rf"{_N}\s*(?:GiB|GB)"

# code, engine, pattern, reader. One line of a log may match several patterns.
_PATTERNS: tuple[tuple[str, str, re.Pattern[str], Callable[[str], float | str]], ...] = tuple(
    (code, engine, re.compile(pattern, re.IGNORECASE), reader)
    for code, engine, pattern, reader in (
        ("block_tokens", "vllm", rf"Setting attention block size to {_N} tokens", _number),
        ("page_padding", "vllm", rf"Padding mamba page size by {_N}\s*%", _number),
        ("padding_layers", "vllm", rf"Add {_N} padding layers", _number),
        ("layer_padding", "vllm", rf"padding layers, may waste at most {_N}\s*%", _number),
        ("cache_gib", "vllm", rf"Available KV cache memory:\s*{_GIB}", _number),
        ("printed_tokens", "vllm", rf"GPU KV cache size:\s*{_N} tokens", _number),
        ("max_model_len", "vllm", rf"Maximum concurrency for {_N} tokens per request", _number),
        ("concurrency", "vllm", rf"tokens per request:\s*{_N}\s*x", _number),
        ("num_blocks", "vllm", rf"(?:num_gpu_blocks|# GPU blocks)\D{{0,4}}{_N}", _number),
        ("cache_mode", "vllm", r"mamba[_ -]cache[_ -]mode\W+(?:is |set to )*'?(\w+)", _word),
        ("drafts", "", rf"num[_-]speculative[_-]tokens'?\"?\s*[:=]\s*{_N}", _number),
        ("tp", "", rf"(?:tensor[_-]parallel[_-]size|tp[_-]size)'?\"?\s*[:=\s]\s*{_N}", _number),
        ("slots", "sglang", rf"max_mamba_cache_size:\s*{_N}", _number),
        ("conv_gib", "sglang", rf"\bconv_state size:\s*{_GIB}", _number),
        ("ssm_gib", "sglang", rf"\bssm_state size:\s*{_GIB}", _number),
        ("draft_state_gib", "sglang", rf"intermediate_ssm_state_cache size:\s*{_GIB}", _number),
        ("pool_tokens", "sglang", rf"KV Cache is allocated.*#tokens:\s*{_N}", _number),
        ("kv_gib", "sglang", rf"#tokens:.*\bKV size:\s*{_GIB}", _number),
        ("kv_dtype", "sglang", r"KV Cache is allocated\. dtype: ([\w.]+)", _word),
        ("max_total_tokens", "sglang", rf"max_total_num_tokens={_N}", _number),
        ("max_running", "sglang", rf"max_running_requests={_N}", _number),
        (
            "max_running",
            "sglang",
            rf"max_running_requests (?:is |was )?(?:capped|reduced|limited|adjusted).*?\bto {_N}",
            _number,
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
    engines: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        for code, engine, pattern, reader in _PATTERNS:
            match = pattern.search(raw[:4000])
            if match is None:
                continue
            value = reader(match.group(1))
            if code in first:
                if first[code] != value:
                    conflicts[code] = None
                continue
            first[code] = value
            lines.append(Line(code, value, number, raw.strip()[:200]))
            if engine:
                engines[engine] = engines.get(engine, 0) + 1
    found = max(engines, key=lambda name: engines[name], default="")
    return BootLog(found, tuple(lines), tuple(conflicts))
