"""Columns of the prefix page's tables that fit a phone, by section; the downloads have all."""

COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "main": {"blocks": ("index", "start", "end", "status")},
    "hit": {"checkpoints": ("group", "boundary", "status")},
    "miss": {"verdicts": ("scenario", "code", "tokens")},
    "hashes": {
        "blocks": ("scheme", "prompt", "content", "status"),
        "verdicts": ("scheme", "reused", "shared"),
    },
    "cost": {
        "parts": ("case", "part", "pflops"),
        "sweep": ("prefix_len", "case", "pflops"),
    },
    "stairs": {"published": ("source", "num_tokens", "block", "hit_tokens")},
    "policies": {"policies": ("workload", "policy", "hit_rate")},
    "player": {
        "blocks": ("name", "letter", "status", "page"),
        "states": ("name", "boundary", "group", "status"),
        "pages": ("page", "kind", "place", "content"),
    },
}
