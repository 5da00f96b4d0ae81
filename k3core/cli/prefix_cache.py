"""Prefix cache: what a prompt reuses, what a trace reuses."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from k3core.cli.arguments import count, positive, print_json


def add_commands(commands: Any) -> None:
    """Add the commands to the subparsers ``commands``."""
    ladder = commands.add_parser("ladder", help="what a prompt reuses when it is sent again")
    _add_ladder(ladder)
    ladder.set_defaults(run=_ladder)

    rate = commands.add_parser("hit-rate", help="reuse of a trace in one prefix cache")
    rate.add_argument("trace", type=Path, help="Mooncake JSONL, plain or .gz")
    _add_policy(rate)
    rate.add_argument(
        "--capacity-blocks",
        type=positive,
        default=5859,
        help="blocks of 512 tokens (default: %(default)s)",
    )
    rate.add_argument(
        "--checkpoint-blocks",
        type=count,
        default=0,
        help="blocks that a checkpoint takes of them (default: %(default)s, kept elsewhere)",
    )
    rate.add_argument("--model", default="kimi-k3", help="whose states (default: %(default)s)")
    rate.add_argument("--tp", type=positive, default=8, help="(default: %(default)s)")
    rate.add_argument("--json", action="store_true", help="print JSON")
    rate.set_defaults(run=_hit_rate)


def _ladder(args: argparse.Namespace) -> int:
    from k3core.studies.prefix_cache import command as study

    granularity = study.ladder_granularity(
        args.block,
        args.model,
        args.tp,
        args.drafter_drop,
        args.max_batched_tokens,
        mla_dtype=args.mla_dtype,
        state_dtype=args.state_dtype,
        draft_len=args.drafts,
        context_parallel=args.context_parallel,
        quantum=args.quantum,
    )
    policy = study.policy_of(args.policy, args.interval, args.max_per_path)
    rows = study.ladder_rows(granularity, policy, args.groups, args.first, args.last, args.step)
    if args.json:
        print_json([asdict(row) for row in rows])
    else:
        print("\n".join(study.ladder_lines(granularity, rows)))
    return 0


def _hit_rate(args: argparse.Namespace) -> int:
    from k3core.studies.prefix_cache import command as study

    report = study.hit_rate(
        args.trace,
        study.policy_of(args.policy, args.interval, args.max_per_path),
        args.capacity_blocks,
        args.checkpoint_blocks,
        args.model,
        args.tp,
    )
    if args.json:
        print_json(report.as_dict())
    else:
        print("\n".join(study.hit_rate_lines(report)))
    return 0


def _add_ladder(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_policy(parser)
    add("--block", type=count, default=0, help="match unit (default: 512, or the model's block)")
    add("--groups", type=positive, default=3, help="KDA groups (default: %(default)s)")
    add("--model", default="", help="a model's code decides the physical block")
    add("--tp", type=positive, default=8, help="tensor-parallel degree (default: %(default)s)")
    add("--mla-dtype", default="", help="cache format (default: the model's)")
    add("--state-dtype", default="float32", help="recurrent state (default: %(default)s)")
    add("--drafts", type=count, default=0, help="drafts per step (default: %(default)s)")
    add("--context-parallel", type=positive, default=1, help="DCP ranks (default: %(default)s)")
    add("--quantum", type=positive, default=128, help="block quantum (default: %(default)s)")
    add("--drafter-drop", action="store_true", help="a drafter drops the last matched block")
    add("--max-batched-tokens", type=count, default=0, help="of a step (default: no limit)")
    add("--first", type=count, default=0, help="shortest prompt (default: one block)")
    add("--last", type=count, default=0, help="longest prompt (default: 4 blocks and a token)")
    add("--step", type=positive, default=1, help="between lengths (default: %(default)s)")
    add("--json", action="store_true", help="print JSON")


def _add_policy(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--policy",
        default="junction",
        help="where states are kept: dense, interval, junction, replay, chunk_end, none "
        "(default: %(default)s)",
    )
    add("--interval", type=count, default=0, metavar="TOKENS", help="for interval")
    add("--max-per-path", type=positive, default=None, help="most states of a path (default: any)")
