"""The command line: ``python -m k3core <command>``. Thin: parse, call a study, print.

Bad input is one line on stderr and exit code 2; a failed verification is exit code 1.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from typing import Any

from k3core.cli import capacity, fleet, lab, prefix_cache
from k3core.cli.arguments import option_text


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> Any:
        self.exit(2, f"{self.prog}: {message} (--help shows what is allowed)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(prog="python -m k3core", description="K3 Serve Lab on the command line.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for subsystem in (lab, prefix_cache, fleet, capacity):
        subsystem.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except BrokenPipeError:
        return 0
    except (ValueError, OSError, MemoryError) as error:
        message = " ".join(str(error).split()) or "out of memory"
        print(f"python -m k3core {args.command}: {option_text(message, args)}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    raise SystemExit(main())
