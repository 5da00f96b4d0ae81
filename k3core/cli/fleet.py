"""Fleet: replay of a trace, sweep over settings."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from k3core.cli.arguments import (
    count,
    failure,
    integer,
    list_of,
    pair,
    positive,
    print_json,
    seed,
    triple,
    writable,
)
from k3core.cli.fleet_conflicts import require_no_conflict


def add_commands(commands: Any) -> None:
    """Add the commands to the subparsers ``commands``."""
    replay = commands.add_parser("replay", help="replay requests over a fleet of clusters")
    _add_fleet(replay)
    add = replay.add_argument
    add(
        "--clusters",
        type=positive,
        default=8,
        help="number of clusters (default: %(default)s)",
    )
    add("--router", default="session", help=f"{_ROUTERS} (default: session)")
    add("--checkpoints", default="junction", help=_CHECKPOINTS)
    add("--budgets", type=pair, metavar="SHORT,LONG", help="weight held at once, with --admission")
    add("--seed", type=seed, default=0, help="seed of every draw")
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
    add("--clusters", type=list_of(positive), default=[], metavar="N,N", help="numbers of clusters")
    add("--router", type=list_of(str), default=[], metavar="R,R", help=_ROUTERS)
    add("--checkpoints", type=list_of(str), default=[], metavar="P,P", help=_CHECKPOINTS)
    add(
        "--budgets",
        type=pair,
        action="append",
        default=[],
        metavar="SHORT,LONG",
        help="weight held at once, with --admission (repeatable)",
    )
    add("--seeds", type=list_of(seed), default=[], metavar="S,S", help="seeds of the draws")
    add("--ticks", choices=("raw", "spread"), default="raw", help="coarse timestamps (default raw)")
    add("--jobs", type=_jobs, help="processes, 1 to the number of cores (default: one per core)")
    add("--dask", metavar="ADDRESS", help="scheduler of a Dask cluster to run on instead")
    add("--out", type=writable, metavar="FILE", help="write the table as .csv or .parquet")
    add("--quiet", action="store_true", help="no progress")
    sweep.set_defaults(run=_sweep)


_ROUTERS = (
    "how a request finds its cluster: session, session-bounded, round-robin, random, least-loaded, "
    "longest-prefix, prefix-load, least-loaded-stale, mooncake, dynamo, sglang"
)
_CHECKPOINTS = (
    "boundaries that keep a KDA state: dense, replay, junction, none or every-K (blocks), "
    "each also with +capN (per path)"
)
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


def _jobs(text: str) -> int:
    return -1 if text == "-1" else integer(text, 1, os.cpu_count() or 1)


def _replay(args: argparse.Namespace) -> int:
    from k3core.studies import fleet

    require_no_conflict(args)
    report = fleet.replay_trace(
        args.trace,
        clusters=args.clusters,
        capacity_blocks=args.capacity_blocks,
        router=args.router,
        ticks=args.ticks,
        **_scenario(args),
    )
    if args.json:
        print_json(report.as_dict())
    else:
        print("\n".join(fleet.render_text(report)))
    return 0


def _sweep(args: argparse.Namespace) -> int:
    from k3core.studies import fleet

    if args.out is not None and args.out.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"--out {str(args.out)!r} must end in .csv or .parquet")
    if args.dask is not None and args.jobs is not None:
        raise ValueError(
            f"argument --jobs: {args.jobs} has no effect here; allowed: without --dask"
        )
    require_no_conflict(args)
    base = fleet.Scenario(capacity_blocks=args.capacity_blocks, ticks=args.ticks, **_scenario(args))
    scenarios = fleet.grid(
        base, args.router, args.clusters, args.budgets, args.checkpoints, args.seeds
    )
    trace = None if args.trace is None else fleet.trace_bytes(args.trace)

    def progress(done: int, total: int) -> None:
        if not args.quiet:
            end = "\n" if done == total else ""
            print(f"\r{done} of {total} runs", end=end, file=sys.stderr, flush=True)

    jobs = -1 if args.jobs is None else args.jobs
    table = fleet.sweep(scenarios, trace, jobs, args.dask, progress).tables["runs"]
    if args.out is not None:
        fleet.write_table(table, args.out)
    if args.json:
        print(table.to_json(orient="records", indent=2))
    else:
        print("\n".join(fleet.sweep_lines(table)))
    return 0


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


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    """What replay and sweep have in common; the defaults are those of the fleet's scenario."""
    add = parser.add_argument
    add("trace", type=Path, nargs="?", help="Mooncake JSONL, Azure CSV or our CSV, plain or .gz")
    add("--generate", metavar="KIND", help="requests instead of a trace: sessions, hubs, lognormal")
    add("--num-requests", type=positive, help="generated, or first ones of the trace")
    add("--rate-per-s", type=float, help="of generated requests")
    add("--arrival-cv", type=float, help="of the gaps between generated requests (1: Poisson)")
    add("--speed", type=float, help="requests arrive so many times faster")
    add("--class-threshold", type=positive, help="tokens from which a prompt is long")
    add("--class-by", help="what counts for that: total or uncached")
    add("--servers", type=positive, help="prefill servers of a cluster")
    add("--vnodes", type=positive, help="ring points of a cluster")
    add("--weights", type=list_of(float), metavar="W,W", help="ring weight of each cluster")
    add(
        "--capacity-blocks",
        type=positive,
        default=5859,
        help="prefix-cache blocks of 512 tokens per cluster (default: %(default)s)",
    )
    add("--checkpoint-blocks", type=count, help="blocks that a checkpoint takes (default 0)")
    add("--load-factor", type=float, help="bound of session-bounded over the mean load")
    add("--refresh-s", type=float, help="age of the loads that least-loaded-stale sees")
    add("--balancing-threshold", type=float, help="mooncake fetches prefixes longer by this factor")
    add("--cost", help="cost model, by the code of its model")
    add(
        "--constants",
        type=list_of(float),
        metavar="F,L,Q",
        help="seconds: fixed, a token, squared",
    )
    add(
        "--measured",
        type=triple,
        action="append",
        metavar="PROMPT,CACHED,SECONDS",
        help="a measured time to first token; two or more calibrate the cost model",
    )
    add("--decode-tokens", type=count, help="token budget of a cluster's decode stage")
    add("--decode-ms", type=float, help="milliseconds per generated token")
    add("--admission", help="none, reject or queue")
    add("--admission-by", help="what a request weighs: class, total or uncached (tokens)")
    add("--lanes", help="a budget per class (separate) or one for both (shared)")
    add("--class-weights", type=pair, metavar="SHORT,LONG", help="weight of one request")
    add("--max-overtakes", type=count, help="requests that may pass a waiting one of their class")
    add(
        "--fail",
        dest="failures",
        type=failure,
        action="append",
        metavar="CLUSTER,AT_S[,RETURN_S]",
        help="a cluster fails and perhaps returns, cold (repeatable)",
    )
    add("--warmup-s", type=float, help="arrivals before this are simulated, not counted")
    add("--until-s", type=float, help="and those after this")
    add("--horizon-s", type=float, help="where the clock stops")
    add("--slo-s", type=float, help="a first token within it is good (default 10)")
    add("--price", type=float, help="of a million prompt tokens (default 3, US dollars)")
    add("--cached-price", type=float, help="of a million reused ones (default 0.3, US dollars)")
    add("--json", action="store_true", help="print JSON")
