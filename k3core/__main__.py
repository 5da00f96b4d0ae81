"""The command line: ``python -m k3core <command>``. Thin: parse, call a study, print.

Bad input is one line on stderr and exit code 2; a failed verification is exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def _verify(args: argparse.Namespace) -> int:
    from k3core.studies import verification

    result = verification.run_checks(fault=args.fault, seed=args.seed)
    print("\n".join(verification.render_text(result)))
    return 0 if result.num_fail == 0 else 1


def _engine(args: argparse.Namespace) -> int:
    from k3core.studies import engine

    result = engine.before_after(
        prompt_len=args.prompt_len, shared_len=args.shared_len, seed=args.seed
    )
    if args.json:
        _print_json(result.as_dict())
    else:
        print("\n".join(engine.render_text(result)))
    return 0


def _export(args: argparse.Namespace) -> int:
    from k3core.gallery import export

    for path in export(args.out, args.lang, tuple(args.figure)):
        print(path)
    return 0


def _replay(args: argparse.Namespace) -> int:
    from k3core.studies import fleet

    report = fleet.replay_trace(
        args.trace,
        clusters=args.clusters,
        capacity_blocks=args.capacity_blocks,
        router=args.router,
    )
    if args.json:
        _print_json(report.as_dict())
    else:
        print("\n".join(fleet.render_text(report)))
    return 0


def _capacity(args: argparse.Namespace) -> int:
    from k3core.capacity import report
    from k3core.capacity.configs import parse_config
    from k3core.capacity.planner import Deployment, plan

    values = {
        name: getattr(args, name) for name in Deployment.__dataclass_fields__ if name != "preset"
    }
    if args.config is not None:
        parsed = parse_config(args.config.read_text(encoding="utf-8"))
        values |= {"model": "custom", "preset": parsed.preset}
        for line in report.config_lines(parsed):
            print(line, file=sys.stderr)
    planned = plan(Deployment(**values))
    if args.json:
        _print_json(planned.as_dict())
    else:
        print("\n".join(report.plan_lines(planned)))
    return 0


def _published(args: argparse.Namespace) -> int:
    from k3core.capacity import report
    from k3core.capacity.published import RECORDS

    if args.json:
        _print_json([record.as_dict() for record in RECORDS])
    else:
        print("\n".join(report.published_lines(RECORDS)))
    return 1 if any(record.unexplained for record in RECORDS) else 0


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> Any:
        self.exit(2, f"{self.prog}: {message} (--help shows what is allowed)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(prog="python -m k3core", description="K3 Serve Lab on the command line.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    verify = commands.add_parser("verify", help="run every check; exit 1 when one fails")
    verify.add_argument("--fault", default="healthy", help="inject a fault (default: %(default)s)")
    verify.add_argument("--seed", type=int, default=0, help="seed of the tensors")
    verify.set_defaults(run=_verify)

    engine = commands.add_parser("engine", help="a request before and after its prefix is cached")
    engine.add_argument("--prompt-len", type=_positive, default=1100, help="tokens of each prompt")
    engine.add_argument(
        "--shared-len", type=_positive, default=600, help="tokens that both prompts share"
    )
    engine.add_argument("--seed", type=int, default=0, help="seed of weights and prompts")
    engine.add_argument("--json", action="store_true", help="print JSON")
    engine.set_defaults(run=_engine)

    export = commands.add_parser("export", help="draw the 14 figures as PNG and SVG")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    export.add_argument("--lang", default="en", help="language of the words")
    export.add_argument("--figure", action="append", default=[], help="only this one (repeatable)")
    export.set_defaults(run=_export)

    replay = commands.add_parser("replay", help="replay a request trace over a fleet")
    replay.add_argument("trace", type=Path, help="Mooncake JSONL, plain or .gz")
    replay.add_argument("--clusters", type=_positive, default=8, help="number of clusters")
    replay.add_argument(
        "--capacity-blocks",
        type=_positive,
        default=5859,
        help="prefix-cache blocks of 512 tokens per cluster (default: %(default)s)",
    )
    replay.add_argument(
        "--router",
        choices=("session", "round-robin", "least-loaded"),
        default="session",
        help="how a request finds its cluster (default: %(default)s)",
    )
    replay.add_argument("--json", action="store_true", help="print JSON")
    replay.set_defaults(run=_replay)

    capacity = commands.add_parser("capacity", help="bytes, blocks and requests of a deployment")
    _add_deployment(capacity)
    capacity.set_defaults(run=_capacity)

    published = commands.add_parser(
        "published", help="published numbers against computed ones; exit 1 on a difference"
    )
    published.add_argument("--json", action="store_true", help="print JSON")
    published.set_defaults(run=_published)
    return parser


def _add_deployment(parser: argparse.ArgumentParser) -> None:
    from k3core.capacity.planner import Deployment

    d = Deployment()
    add = parser.add_argument
    add("--model", default=d.model, help="a model's code (default: %(default)s)")
    add("--config", type=Path, metavar="FILE", help="a Hugging Face config.json instead")
    add("--tp", type=int, default=d.tp, help="tensor-parallel degree (default: 8 where it fits)")
    add("--context", type=int, default=d.context, help="longest sequence (default: %(default)s)")
    add("--mean-tokens", type=int, default=d.mean_tokens, help="mean length (default: --context)")
    add("--drafts", type=int, default=d.drafts, help="drafts per step (default: %(default)s)")
    add("--rollback", default=d.rollback, help="rollback scheme (default: %(default)s)")
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
    add("--pool-rule", default=d.pool_rule, help="blocks or split (default: %(default)s)")
    add("--quantum", type=int, default=d.quantum, help="block quantum (default: %(default)s)")
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
    add("--max-running", type=int, default=d.max_running, help="engine cap (default: none)")
    add("--json", action="store_true", help="print JSON")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except BrokenPipeError:
        return 0
    except (ValueError, OSError) as error:
        message = " ".join(str(error).split())
        print(f"python -m k3core {args.command}: {message}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    raise SystemExit(main())
