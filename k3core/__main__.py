"""The command line: ``python -m k3core <command>``. Thin: parse, call a study, print.

Bad input is one line on stderr and exit code 2; a failed verification is exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

MAX_CLUSTERS = 4096  # each puts 160 points on the ring
MAX_SEED = 2**32 - 1  # fits every generator, also after the checks add to it


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
        ticks=args.ticks,
        **_scenario(args),
    )
    if args.json:
        _print_json(report.as_dict())
    else:
        print("\n".join(fleet.render_text(report)))
    return 0


def _sweep(args: argparse.Namespace) -> int:
    from k3core.studies import fleet

    if args.out is not None and args.out.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"--out {str(args.out)!r} must end in .csv or .parquet")
    base = fleet.Scenario(capacity_blocks=args.capacity_blocks, ticks=args.ticks, **_scenario(args))
    if (args.trace is None) == (not base.generate):
        raise ValueError("either a trace or --generate must be given")
    scenarios = fleet.grid(
        base, args.router, args.clusters, args.budgets, args.checkpoints, args.seeds
    )
    trace = b"" if args.trace is None else fleet.trace_bytes(args.trace)

    def progress(done: int, total: int) -> None:
        if not args.quiet:
            end = "\n" if done == total else ""
            print(f"\r{done} of {total} runs", end=end, file=sys.stderr, flush=True)

    table = fleet.sweep(scenarios, trace, args.jobs, args.dask, progress).tables["runs"]
    if args.out is not None:
        fleet.write_table(table, args.out)
    if args.json:
        print(table.to_json(orient="records", indent=2))
    else:
        print("\n".join(fleet.sweep_lines(table)))
    return 0


_SCENARIO = (
    "generate",
    "num_requests",
    "rate_per_s",
    "arrival_cv",
    "speed",
    "class_threshold",
    "class_by",
    "servers",
    "vnodes",
    "weights",
    "checkpoint_blocks",
    "load_factor",
    "refresh_s",
    "balancing_threshold",
    "cost",
    "measured",
    "constants",
    "decode_tokens",
    "decode_ms",
    "admission",
    "admission_by",
    "lanes",
    "class_weights",
    "max_overtakes",
    "failures",
    "warmup_s",
    "until_s",
    "horizon_s",
    "slo_s",
    "price",
    "cached_price",
)


def _scenario(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of a fleet scenario that were given, beside those that ``replay`` names itself."""
    given = {name: getattr(args, name) for name in _SCENARIO}
    if args.command == "replay":
        given |= {"checkpoints": args.checkpoints, "seed": args.seed, "budgets": args.budgets}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }


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


def _ladder(args: argparse.Namespace) -> int:
    from k3core.studies.prefix_cache import command as study

    grid = study.ladder_grid(
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
    rows = study.ladder_rows(grid, policy, args.groups, args.first, args.last, args.step)
    if args.json:
        _print_json([asdict(row) for row in rows])
    else:
        print("\n".join(study.ladder_lines(grid, rows)))
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
        _print_json(report.as_dict())
    else:
        print("\n".join(study.hit_rate_lines(report)))
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


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _integer(text: str, least: int, most: int | None = None) -> int:
    allowed = f"at least {least}" if most is None else f"{least} to {most}"
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} must be an integer, {allowed}")
    return number


def _positive(text: str) -> int:
    return _integer(text, 1)


def _count(text: str) -> int:
    return _integer(text, 0)


def _clusters(text: str) -> int:
    return _integer(text, 1, MAX_CLUSTERS)


def _seed(text: str) -> int:
    return _integer(text, 0, MAX_SEED)


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
    verify.add_argument("--seed", type=_seed, default=0, help="seed of the tensors")
    verify.set_defaults(run=_verify)

    engine = commands.add_parser("engine", help="a request before and after its prefix is cached")
    engine.add_argument("--prompt-len", type=_positive, default=1100, help="tokens of each prompt")
    engine.add_argument(
        "--shared-len", type=_positive, default=600, help="tokens that both prompts share"
    )
    engine.add_argument("--seed", type=_seed, default=0, help="seed of weights and prompts")
    engine.add_argument("--json", action="store_true", help="print JSON")
    engine.set_defaults(run=_engine)

    bench = commands.add_parser("bench-report", help="the last benchmark results as Markdown")
    bench.add_argument(
        "results", type=Path, nargs="?", help="results file or folder (default: .benchmarks)"
    )
    bench.add_argument("--out", type=Path, metavar="FILE", help="write here instead of printing")
    bench.set_defaults(run=_bench_report)

    export = commands.add_parser("export", help="draw the 14 figures as PNG and SVG")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    export.add_argument("--lang", default="en", help="language of the words")
    export.add_argument("--figure", action="append", default=[], help="only this one (repeatable)")
    export.set_defaults(run=_export)

    replay = commands.add_parser("replay", help="replay requests over a fleet of clusters")
    _add_fleet(replay)
    add = replay.add_argument
    add("--clusters", type=_clusters, default=8, help="number of clusters (default: %(default)s)")
    add("--router", default="session", help="how a request finds its cluster (default: session)")
    add("--checkpoints", default="junction", help=_CHECKPOINTS)
    add("--budgets", type=_pair, metavar="SHORT,LONG", help="weight held at once, with --admission")
    add("--seed", type=_seed, default=0, help="seed of every draw")
    add(
        "--ticks",
        choices=("both", "raw", "spread"),
        default="both",
        help="coarse timestamps as they are, spread over their tick, or both (default)",
    )
    replay.set_defaults(run=_replay)

    sweep = commands.add_parser("sweep", help="every combination of router, clusters, budgets ...")
    _add_fleet(sweep)
    add = sweep.add_argument
    add("--clusters", type=_list(_positive), default=[], metavar="N,N", help="numbers of clusters")
    add("--router", type=_list(str), default=[], metavar="R,R", help="routers")
    add("--checkpoints", type=_list(str), default=[], metavar="P,P", help=_CHECKPOINTS)
    add(
        "--budgets",
        type=_pair,
        action="append",
        default=[],
        metavar="SHORT,LONG",
        help="weight held at once, with --admission (repeatable)",
    )
    add("--seeds", type=_list(int), default=[], metavar="S,S", help="seeds of the draws")
    add("--ticks", choices=("raw", "spread"), default="raw", help="coarse timestamps (default raw)")
    add("--jobs", type=int, default=-1, help="processes (default: one per core)")
    add("--dask", metavar="ADDRESS", help="scheduler of a Dask cluster to run on instead")
    add("--out", type=Path, metavar="FILE", help="write the table as .csv or .parquet")
    add("--quiet", action="store_true", help="no progress")
    sweep.set_defaults(run=_sweep)

    capacity = commands.add_parser("capacity", help="bytes, blocks and requests of a deployment")
    _add_deployment(capacity)
    capacity.set_defaults(run=_capacity)

    ladder = commands.add_parser("ladder", help="what a prompt reuses when it is sent again")
    _add_ladder(ladder)
    ladder.set_defaults(run=_ladder)

    rate = commands.add_parser("hit-rate", help="reuse of a trace in one prefix cache")
    rate.add_argument("trace", type=Path, help="Mooncake JSONL, plain or .gz")
    _add_policy(rate)
    rate.add_argument(
        "--capacity-blocks",
        type=_positive,
        default=5859,
        help="blocks of 512 tokens (default: %(default)s)",
    )
    rate.add_argument(
        "--checkpoint-blocks",
        type=_count,
        default=0,
        help="blocks that a checkpoint takes of them (default: %(default)s, kept elsewhere)",
    )
    rate.add_argument("--model", default="kimi-k3", help="whose states (default: %(default)s)")
    rate.add_argument("--tp", type=_positive, default=8, help="(default: %(default)s)")
    rate.add_argument("--json", action="store_true", help="print JSON")
    rate.set_defaults(run=_hit_rate)

    published = commands.add_parser(
        "published", help="published numbers against computed ones; exit 1 on a difference"
    )
    published.add_argument("--json", action="store_true", help="print JSON")
    published.set_defaults(run=_published)
    return parser


_CHECKPOINTS = (
    "boundaries that keep a KDA state: dense, replay, junction, none or every-K (blocks), "
    "each also with +capN (per path)"
)


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    """What replay and sweep have in common; the defaults are those of the fleet's scenario."""
    add = parser.add_argument
    add("trace", type=Path, nargs="?", help="Mooncake JSONL, Azure CSV or our CSV, plain or .gz")
    add("--generate", metavar="KIND", help="requests instead of a trace: sessions, hubs, lognormal")
    add("--num-requests", type=_positive, help="generated, or first ones of the trace")
    add("--rate-per-s", type=float, help="of generated requests")
    add("--arrival-cv", type=float, help="of the gaps between generated requests (1: Poisson)")
    add("--speed", type=float, help="requests arrive so many times faster")
    add("--class-threshold", type=_positive, help="tokens from which a prompt is long")
    add("--class-by", help="what counts for that: total or uncached")
    add("--servers", type=_positive, help="prefill servers of a cluster")
    add("--vnodes", type=_positive, help="ring points of a cluster")
    add("--weights", type=_list(float), metavar="W,W", help="ring weight of each cluster")
    add(
        "--capacity-blocks",
        type=_positive,
        default=5859,
        help="prefix-cache blocks of 512 tokens per cluster (default: %(default)s)",
    )
    add("--checkpoint-blocks", type=int, help="blocks that a checkpoint takes of them (default 0)")
    add("--load-factor", type=float, help="bound of session-bounded over the mean load")
    add("--refresh-s", type=float, help="age of the loads that least-loaded-stale sees")
    add("--balancing-threshold", type=float, help="mooncake fetches prefixes longer by this factor")
    add("--cost", help="cost model, by the code of its model")
    add(
        "--constants", type=_list(float), metavar="F,L,Q", help="seconds: fixed, per token, squared"
    )
    add(
        "--measured",
        type=_triple,
        action="append",
        metavar="PROMPT,CACHED,SECONDS",
        help="a measured time to first token; two or more calibrate the cost model",
    )
    add("--decode-tokens", type=int, help="token budget of a cluster's decode stage")
    add("--decode-ms", type=float, help="milliseconds per generated token")
    add("--admission", help="none, reject or queue")
    add("--admission-by", help="what a request weighs: class, total or uncached (tokens)")
    add("--lanes", help="a budget per class (separate) or one for both (shared)")
    add("--class-weights", type=_pair, metavar="SHORT,LONG", help="weight of one request")
    add("--max-overtakes", type=int, help="requests that may pass a waiting one of their class")
    add(
        "--fail",
        dest="failures",
        type=_failure,
        action="append",
        metavar="CLUSTER,AT_S[,RETURN_S]",
        help="a cluster fails and perhaps returns, cold (repeatable)",
    )
    add("--warmup-s", type=float, help="arrivals before this are simulated, not counted")
    add("--until-s", type=float, help="and those after this")
    add("--horizon-s", type=float, help="where the clock stops")
    add("--slo-s", type=float, help="a first token within it is good (default 10)")
    add("--price", type=float, help="of a million prompt tokens (default 3)")
    add("--cached-price", type=float, help="of a million reused ones (default 0.3)")
    add("--json", action="store_true", help="print JSON")


def _list(convert: Any) -> Any:
    """A parser of values separated by commas."""

    def values(text: str) -> list[Any]:
        return [convert(part.strip()) for part in text.split(",")]

    return values


def _pair(text: str) -> tuple[int, int]:
    short, long = text.split(",")
    return int(short), int(long)


def _triple(text: str) -> tuple[int, int, float]:
    prompt, cached, seconds = text.split(",")
    return int(prompt), int(cached), float(seconds)


def _failure(text: str) -> tuple[int, float, float]:
    cluster, at_s, *returns = text.split(",")
    (return_s,) = returns or ["inf"]
    return int(cluster), float(at_s), float(return_s)


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


def _add_ladder(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_policy(parser)
    add("--block", type=_count, default=0, help="match unit (default: 512, or the model's block)")
    add("--groups", type=_positive, default=3, help="KDA groups (default: %(default)s)")
    add("--model", default="", help="a model's code decides the physical block")
    add("--tp", type=_positive, default=8, help="tensor-parallel degree (default: %(default)s)")
    add("--mla-dtype", default="", help="cache format (default: the model's)")
    add("--state-dtype", default="float32", help="recurrent state (default: %(default)s)")
    add("--drafts", type=_count, default=0, help="drafts per step (default: %(default)s)")
    add("--context-parallel", type=_positive, default=1, help="DCP ranks (default: %(default)s)")
    add("--quantum", type=_positive, default=128, help="block quantum (default: %(default)s)")
    add("--drafter-drop", action="store_true", help="a drafter drops the last matched block")
    add("--max-batched-tokens", type=_count, default=0, help="of a step (default: no limit)")
    add("--first", type=_count, default=0, help="shortest prompt (default: one block)")
    add("--last", type=_count, default=0, help="longest prompt (default: 4 blocks and a token)")
    add("--step", type=_positive, default=1, help="between lengths (default: %(default)s)")
    add("--json", action="store_true", help="print JSON")


def _add_policy(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--policy",
        default="junction",
        help="where states are kept: dense, interval, junction, replay, chunk_end, none "
        "(default: %(default)s)",
    )
    add("--interval", type=_count, default=0, metavar="TOKENS", help="for interval")
    add("--max-per-path", type=_positive, default=None, help="most states of a path (default: any)")


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
