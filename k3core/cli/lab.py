"""The lab itself: verification, the engine demonstration, figures, benchmark results."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from k3core.cli.arguments import positive, print_json, seed, writable

_FAULTS = (  # the names of page 9 in codes; typed here, for the checks need a second to import
    "inject a fault: healthy (default), undecayed_delta, gate_multiplier, beta_bf16_replay, "
    "state_bf16_commit, commit_off_by_one, conv_not_rolled_back, verify_writes_state"
)


def add_commands(commands: Any) -> None:
    """Add the commands to the subparsers ``commands``."""
    verify = commands.add_parser("verify", help="run every check; exit 1 when one fails")
    verify.add_argument("--fault", default="healthy", help=_FAULTS)
    verify.add_argument("--seed", type=seed, default=0, help="seed of the tensors")
    verify.set_defaults(run=_verify)

    engine = commands.add_parser("engine", help="a request before and after its prefix is cached")
    engine.add_argument("--prompt-len", type=positive, default=1100, help="tokens of each prompt")
    engine.add_argument(
        "--shared-len", type=positive, default=1024, help="tokens that both prompts share"
    )
    engine.add_argument("--seed", type=seed, default=0, help="seed of weights and prompts")
    engine.add_argument("--json", action="store_true", help="print JSON")
    engine.set_defaults(run=_engine)

    bench = commands.add_parser("bench-report", help="the last benchmark results as Markdown")
    bench.add_argument(
        "results", type=Path, nargs="?", help="results file or folder (default: .benchmarks)"
    )
    bench.add_argument("--out", type=writable, metavar="FILE", help="write here, print the path")
    bench.set_defaults(run=_bench_report)

    export = commands.add_parser("export", help="draw the 14 figures as PNG and SVG")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    export.add_argument("--lang", default="en", help="language of the words")
    export.add_argument("--figure", action="append", default=[], help="only this one (repeatable)")
    export.set_defaults(run=_export)


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
        print_json(result.as_dict())
    else:
        print("\n".join(engine.render_text(result)))
    return 0


def _bench_report(args: argparse.Namespace) -> int:
    from k3core.studies.bench_report import bench_report

    report = bench_report(args.results).markdown()
    if args.out is None:
        print(report)
    else:
        args.out.write_text(report + "\n", encoding="utf-8")
        print(args.out)
    return 0


def _export(args: argparse.Namespace) -> int:
    from k3core.gallery import export

    for path in export(args.out, args.lang, tuple(args.figure)):
        print(path)
    return 0
