"""Prefix cache: what a prompt reuses, what a trace reuses."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from k3core.cli.arguments import count, positive, print_json
from k3core.dtypes import DTYPE_BYTES
from k3core.errors import require

_OF_MODEL = ("tp", "mla_dtype", "state_dtype", "drafts", "context_parallel", "quantum")
"""Options of ``ladder`` that describe the deployment of a model, and nothing without one."""


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

    deployment = {
        "draft_len" if name == "drafts" else name: getattr(args, name)
        for name in _OF_MODEL
        if getattr(args, name) is not None
    }
    require(
        bool(args.model) or not deployment,
        ", ".join(
            f"--{name.replace('_', '-')} {getattr(args, name)}"
            for name in _OF_MODEL
            if getattr(args, name) is not None
        )
        + " has no effect here; allowed: with --model",
    )
    granularity = study.ladder_granularity(
        args.block,
        args.model,
        drafter_drop=args.drafter_drop,
        max_batched_tokens=args.max_batched_tokens,
        **deployment,
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
    add("--tp", type=positive, help="tensor-parallel degree, with --model (default: 8)")
    formats = tuple(DTYPE_BYTES)
    add("--mla-dtype", choices=formats, help="cache format, with --model (default: the model's)")
    add(
        "--state-dtype",
        choices=formats,
        help="recurrent state, with --model (default: float32)",
    )
    add("--drafts", type=count, help="drafts per step, with --model (default: 0)")
    add("--context-parallel", type=positive, help="DCP ranks, with --model (default: 1)")
    add("--quantum", type=positive, help="block quantum, with --model (default: 128)")
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
        help="where states are kept: dense, interval (every), junction (second-sighting), "
        "replay (replay-boundary), chunk_end, none (default: %(default)s)",
    )
    add("--interval", type=count, default=0, metavar="TOKENS", help="for interval")
    add("--max-per-path", type=positive, default=None, help="most states of a path (default: any)")
