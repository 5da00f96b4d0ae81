"""Options of ``replay`` and ``sweep`` that would be ignored, or that contradict each other."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from k3core.errors import require

_OF_ADMISSION = ("budgets", "admission_by", "lanes", "class_weights", "max_overtakes")
_OF_GENERATED = ("rate_per_s", "arrival_cv")
_OF_COST = ("cost", "constants", "measured")
_OF_ROUTER = {
    "load_factor": "session-bounded",
    "refresh_s": "least-loaded-stale",
    "balancing_threshold": "mooncake",
}


def require_no_conflict(args: argparse.Namespace) -> None:
    """Refuse what no run would obey.

    Raises:
        K3Error: names the option, its value and what it needs.
    """
    given = {name for name, value in vars(args).items() if value is not None and value != []}
    require(
        (args.trace is None) == bool(args.generate),
        "either a trace or --generate must be given, "
        + ("and only one of them" if args.generate else "and neither is"),
    )
    if args.generate is None:
        for name in _given(_OF_GENERATED, given):
            _refuse(args, name, "with --generate; a trace has arrivals of its own (--speed)")
    elif args.ticks == "spread":
        _refuse(args, "ticks", "with a trace; generated arrivals have no ticks")
    costs = _given(_OF_COST, given)
    require(
        len(costs) <= 1,
        f"{' and '.join(map(_option, costs))} contradict each other; allowed: one of "
        f"{', '.join(map(_option, _OF_COST))}",
    )
    mode = args.admission or "none"
    if mode == "none":
        for name in _given(_OF_ADMISSION, given):
            _refuse(args, name, "with --admission reject or queue")
    elif "budgets" not in given:
        _refuse(args, "admission", "with --budgets SHORT,LONG")
    by_class = (args.admission_by or "class") == "class"
    if not by_class and "class_weights" in given:
        _refuse(args, "class_weights", "with --admission-by class")
    if "max_overtakes" in given and (by_class or mode != "queue"):
        _refuse(
            args, "max_overtakes", "with --admission queue and --admission-by total or uncached"
        )
    if "decode_ms" in given and not args.decode_tokens:
        _refuse(args, "decode_ms", "with --decode-tokens")
    if {"jobs", "dask"} <= given:
        _refuse(args, "jobs", "without --dask")
    routers = args.router if isinstance(args.router, list) else [args.router]
    for name in _given(_OF_ROUTER, given):
        if _OF_ROUTER[name] not in routers:
            _refuse(args, name, f"with --router {_OF_ROUTER[name]}")


def _given(names: Iterable[str], given: set[str]) -> list[str]:
    return [name for name in names if name in given]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _refuse(args: argparse.Namespace, name: str, where: str) -> None:
    value = getattr(args, name)
    pairs = value if isinstance(value, list) else [value]
    text = " ".join(
        ",".join(map(str, pair)) if isinstance(pair, tuple) else str(pair) for pair in pairs
    )
    require(False, f"argument {_option(name)}: {text} has no effect here; allowed: {where}")
