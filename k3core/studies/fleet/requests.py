"""One run request by request: what a reader takes away as a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from k3core.fleet.result import ABSENT, IN_FLIGHT, REASONS, REJECTED, SERVED
from k3core.studies.fleet.scenario import kept_run, page_scenario

STATUS = {ABSENT: "absent", IN_FLIGHT: "in_flight", SERVED: "served", REJECTED: "refused"}


def request_table(**params: Any) -> pd.DataFrame:
    """One row per request in order of arrival; empty cells where a request was not served.

    Args:
        params: fields of ``Scenario``.
    """
    result = kept_run(page_scenario(**params))
    workload = result.workload
    served = result.is_served
    return pd.DataFrame(
        {
            "arrival_s": workload.arrival_s,
            "session": workload.sessions,
            "cls": np.where(result.is_long, "long", "short"),
            "input_len": workload.input_len,
            "output_len": workload.output_len,
            "status": pd.Series(result.status).map(STATUS),
            "reason": np.array(REASONS)[result.reason],
            "cluster": [
                result.clusters[index] if index >= 0 else "" for index in result.cluster.tolist()
            ],
            "mla_hit_len": np.where(served, result.hit_len, 0),
            "reused_len": np.where(served, result.reused_len, 0),
            "fetched_len": np.where(served, result.fetched_len, 0),
            "admit_s": result.admit_s,
            "start_s": result.start_s,
            "first_token_s": result.finish_s,
            "done_s": result.done_s,
            "ttft_s": result.all_ttft_s,
            "moved": result.moved,
            "failed_over": result.failed_over,
        }
    )
