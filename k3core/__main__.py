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
    return parser


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
