"""What every benchmark shares: threads, the machine in the results, the measures at the end."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch

import k3core


@pytest.fixture
def threads() -> Generator[Callable[[int], None], None, None]:
    """Set torch's threads for one benchmark."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Any) -> None:
    machine_info["lab"] = {
        "k3core": k3core.__version__,
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else [],
        "system": platform.platform(),
    }


def pytest_terminal_summary(terminalreporter: Any) -> None:
    session = getattr(terminalreporter.config, "_benchmarksession", None)
    for bench in session.benchmarks if session else ():
        for measure in bench.extra_info.get("measures", ()):
            verdict = {None: "", True: " met", False: " MISSED"}[measure["met"]]
            bound = f" (bound {measure['bound']}:{verdict})" if measure["bound"] else ""
            terminalreporter.write_line(
                f"{bench.name}: {measure['name']} = {measure['best']:.3g} "
                f"[{measure['low']:.3g}, {measure['high']:.3g}]{bound}"
            )
        for fit in bench.extra_info.get("exponents", ()):
            terminalreporter.write_line(
                f"{bench.name}: time ~ {fit['against']}^{fit['best']:.2f} "
                f"[{fit['low']:.2f}, {fit['high']:.2f}]"
            )
