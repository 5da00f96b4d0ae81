"""Time of one planner call against its bound of one millisecond."""

import pytest

from k3core.capacity.bootlog import read_log
from k3core.capacity.configs import parse_config
from k3core.capacity.planner import Deployment, inverse, plan
from tests.benchmarks.measures import at_most, note_value
from tests.public_configs import KIMI_K3

pytestmark = pytest.mark.benchmark(group="Planner")

LOG = "Setting attention block size to 1536 tokens\n" * 200


@pytest.mark.parametrize("pool_rule", ["blocks", "split"])
def test_one_plan_with_all_its_numbers(benchmark, pool_rule):
    deployment = Deployment(tp=8, pool_rule=pool_rule)
    benchmark(lambda: plan(deployment).as_dict())
    note_value(benchmark, "ms", [1e3 * x for x in benchmark.stats.stats.data], at_most(1))


def test_inverse_of_a_plan(benchmark):
    planned = plan(Deployment(tp=8))
    benchmark(inverse, planned, 51)


def test_parse_of_a_config(benchmark):
    benchmark(parse_config, KIMI_K3)


def test_read_of_a_log_of_200_lines(benchmark):
    benchmark(read_log, LOG)
