"""Capacity planner and published numbers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3core.cli.arguments import print_json
from k3core.errors import CapacityError, require, require_count

if TYPE_CHECKING:
    from k3core.capacity.configs import ParsedConfig

_UNSET = ("tp", "mean_tokens", "max_running", "state_blocks")


def add_commands(commands: Any) -> None:
    """Add the commands to the subparsers ``commands``."""
    capacity = commands.add_parser("capacity", help="bytes, blocks and requests of a deployment")
    _add_deployment(capacity)
    capacity.set_defaults(run=_capacity)

    published = commands.add_parser(
        "published", help="published numbers against computed ones; exit 1 on a difference"
    )
    published.add_argument("--json", action="store_true", help="print JSON")
    published.set_defaults(run=_published)


def _capacity(args: argparse.Namespace) -> int:
    from k3core.capacity import report
    from k3core.capacity.planner import Deployment, plan

    for name in _UNSET:  # a default of its own; given, it must be a number of something
        if getattr(args, name) is not None:
            require_count(name, getattr(args, name), 1)
    values = {
        name: getattr(args, name)
        for name in Deployment.__dataclass_fields__
        if name != "preset" and getattr(args, name) is not None
    }
    notes: list[str] = []
    if args.config is not None:
        require(
            args.model is None,
            f"--model {args.model} and --config exclude each other: the file is the model",
        )
        parsed = _read_config(args.config)
        values |= {"model": "custom", "preset": parsed.preset}
        notes = [*report.config_lines(parsed)]
    planned = plan(Deployment(**values))
    if planned.mean_tokens > args.context:
        notes.append(
            f"warning: mean_tokens={planned.mean_tokens} is above context={args.context}: requests "
            "of the mean length cannot run"
        )
    for line in notes:
        print(line, file=sys.stderr)
    if args.json:
        print_json({**planned.as_dict(), **({"notes": notes} if notes else {})})
    else:
        print("\n".join(report.plan_lines(planned)))
    return 0


def _read_config(path: Path) -> ParsedConfig:
    """The model in a file; what is wrong with it is said with the file's name."""
    from k3core.capacity.configs import MAX_CONFIG_CHARS, parse_config

    with path.open("rb") as file:
        data = file.read(4 * MAX_CONFIG_CHARS + 4)
    try:
        return parse_config(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CapacityError(f"{path} is no UTF-8 text: {error.reason}") from None
    except CapacityError as error:
        raise CapacityError(f"{path}: {error}") from None


def _whole(least: int) -> Callable[[str], int]:
    """A whole number; the planner checks its range."""

    def whole(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            allowed = f"must be an integer, at least {least}"
            raise argparse.ArgumentTypeError(f"{text[:40]!r} {allowed}") from None

    return whole


def _number(allowed: str) -> Callable[[str], float]:
    """A number; the planner checks its range."""

    def number(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} must be {allowed}") from None

    return number


def _published(args: argparse.Namespace) -> int:
    from k3core.capacity import report
    from k3core.capacity.published import RECORDS

    if args.json:
        print_json([record.as_dict() for record in RECORDS])
    else:
        print("\n".join(report.published_lines(RECORDS)))
    return 1 if any(record.unexplained for record in RECORDS) else 0


def _add_deployment(parser: argparse.ArgumentParser) -> None:
    from k3core.capacity.planner import Deployment
    from k3core.capacity.presets import MODELS
    from k3core.capacity.schemes import SCHEMES

    d = Deployment()
    add = parser.add_argument
    codes = ", ".join(MODELS)
    add("--model", help=f"one of {codes} (default: {d.model})")
    add("--config", type=Path, metavar="FILE", help="a Hugging Face config.json instead")
    add("--tp", type=_whole(1), help="tensor-parallel degree (default: 8 where it fits)")
    add(
        "--context",
        type=_whole(1),
        default=d.context,
        help="longest sequence (default: %(default)s)",
    )
    add("--mean-tokens", type=_whole(1), help="mean length (default: --context)")
    add("--drafts", type=_whole(0), default=d.drafts, help="drafts per step (default: %(default)s)")
    schemes = ", ".join(SCHEMES)
    add("--rollback", default=d.rollback, help=f"one of {schemes} (default: %(default)s)")
    add(
        "--budget-gib",
        type=_number("a number of GiB above 0"),
        default=d.budget_gib,
        help="GiB of cache per rank (default: %(default)s)",
    )
    add("--state-dtype", default=d.state_dtype, help="recurrent state (default: %(default)s)")
    add("--conv-dtype", default=d.conv_dtype, help="convolution window (default: %(default)s)")
    add("--mla-dtype", default=d.mla_dtype, help="growing cache (default: the model's)")
    add("--drafter-layers", type=_whole(0), default=d.drafter_layers, help="(default: %(default)s)")
    add("--drafter-dtype", default=d.drafter_dtype, help="drafter's cache (default: --mla-dtype)")
    add("--pool-rule", default=d.pool_rule, help="blocks or split (default: %(default)s)")
    add("--quantum", type=_whole(1), default=d.quantum, help="block quantum (default: %(default)s)")
    add("--state-blocks", type=_whole(1), help="blocks per state group (default: by the scheme)")
    add(
        "--state-pool-ratio",
        type=_number("a number above 0"),
        default=d.state_pool_ratio,
        help="split only (default: %(default)s)",
    )
    add(
        "--slots-per-request",
        type=_whole(1),
        default=d.slots_per_request,
        help="split only (default: %(default)s)",
    )
    add("--max-running", type=_whole(1), help="engine cap (default: none)")
    add("--json", action="store_true", help="print JSON")
