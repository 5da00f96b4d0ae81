"""Capacity planner and published numbers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from k3core.cli.arguments import print_json
from k3core.errors import require_count

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
    from k3core.capacity.configs import parse_config
    from k3core.capacity.planner import Deployment, plan

    for name in _UNSET:  # a default of its own; given, it must be a number of something
        if getattr(args, name) is not None:
            require_count(name, getattr(args, name), 1)
    values = {
        name: getattr(args, name)
        for name in Deployment.__dataclass_fields__
        if name != "preset" and getattr(args, name) is not None
    }
    if args.config is not None:
        parsed = parse_config(args.config.read_text(encoding="utf-8-sig"))
        values |= {"model": "custom", "preset": parsed.preset}
        for line in report.config_lines(parsed):
            print(line, file=sys.stderr)
    planned = plan(Deployment(**values))
    if args.json:
        print_json(planned.as_dict())
    else:
        print("\n".join(report.plan_lines(planned)))
    return 0


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
    add("--model", default=d.model, help=f"one of {codes} (default: %(default)s)")
    add("--config", type=Path, metavar="FILE", help="a Hugging Face config.json instead")
    add("--tp", type=int, help="tensor-parallel degree (default: 8 where it fits)")
    add("--context", type=int, default=d.context, help="longest sequence (default: %(default)s)")
    add("--mean-tokens", type=int, help="mean length (default: --context)")
    add("--drafts", type=int, default=d.drafts, help="drafts per step (default: %(default)s)")
    schemes = ", ".join(SCHEMES)
    add("--rollback", default=d.rollback, help=f"one of {schemes} (default: %(default)s)")
    add(
        "--budget-gib",
        type=float,
        default=d.budget_gib,
        help="GiB of cache per rank (default: %(default)s)",
    )
    add("--state-dtype", default=d.state_dtype, help="recurrent state (default: %(default)s)")
    add("--conv-dtype", default=d.conv_dtype, help="convolution window (default: %(default)s)")
    add("--mla-dtype", default=d.mla_dtype, help="growing cache (default: the model's)")
    add("--drafter-layers", type=int, default=d.drafter_layers, help="(default: %(default)s)")
    add("--drafter-dtype", default=d.drafter_dtype, help="drafter's cache (default: --mla-dtype)")
    add("--pool-rule", default=d.pool_rule, help="blocks or split (default: %(default)s)")
    add("--quantum", type=int, default=d.quantum, help="block quantum (default: %(default)s)")
    add("--state-blocks", type=int, help="blocks per state group (default: by the scheme)")
    add(
        "--state-pool-ratio",
        type=float,
        default=d.state_pool_ratio,
        help="split only (default: %(default)s)",
    )
    add(
        "--slots-per-request",
        type=int,
        default=d.slots_per_request,
        help="split only (default: %(default)s)",
    )
    add("--max-running", type=int, help="engine cap (default: none)")
    add("--json", action="store_true", help="print JSON")
