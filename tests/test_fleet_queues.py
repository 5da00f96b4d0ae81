"""The fleet against queueing theory: M/M/1, M/D/1, M/G/1, M/M/c, Erlang B, Kaufman-Roberts.

Gaps and service times are the quantiles of their laws in random order: the samples have exactly the
moments of the law, and only the order is left to chance.
"""

import math

import numpy as np
import pytest

from k3core.fleet import BudgetController, FleetSimulator, Workload
from k3core.fleet.stats import order_statistic

BAR = 0.03


def exponential(rng, num, mean=1.0):
    quantiles = -np.log1p(-(np.arange(num) + 0.5) / num)
    return rng.permutation(quantiles * (mean / quantiles.mean()))


def scaled(sample, mean):
    return sample * (mean / sample.mean())


def served(gaps, service_s, servers=1, is_long=None, admission=None):
    num = len(gaps)
    lengths = np.full(num, 100) if is_long is None else np.where(is_long, 400, 100)
    workload = Workload(
        np.cumsum(gaps),
        lengths,
        np.zeros(num, np.int64),
        np.arange(num),
        np.arange(num + 1),
        np.zeros(num, np.uint64),
        long_threshold=200,
        service_s=service_s,
    )
    return FleetSimulator(1, capacity_blocks=0, servers=servers, admission=admission).run(workload)


def poisson(num, load, servers, seed):
    rng = np.random.default_rng(seed)
    return rng, exponential(rng, num, 1 / (load * servers))


def waits_of(result):
    return result.start_s - result.workload.arrival_s


@pytest.mark.parametrize(("load", "num", "seed"), [(0.5, 150_000, 1), (0.8, 600_000, 1)])
def test_exponential_service_is_an_m_m_1_queue(load, num, seed):
    rng, gaps = poisson(num, load, 1, seed)
    result = served(gaps, exponential(rng, num))
    waits, stays = waits_of(result), result.all_ttft_s
    assert waits.mean() == pytest.approx(load / (1 - load), rel=BAR)
    assert stays.mean() == pytest.approx(1 / (1 - load), rel=BAR)
    assert order_statistic(stays, 0.95) == pytest.approx(-math.log(0.05) / (1 - load), rel=BAR)
    expected = math.log(load / 0.05) / (1 - load)
    assert order_statistic(waits, 0.95) == pytest.approx(expected, rel=BAR)


@pytest.mark.parametrize(("load", "p95", "num"), [(0.5, 2.0506, 100_000), (0.8, 6.6203, 700_000)])
def test_constant_service_is_an_m_d_1_queue(load, p95, num):
    """P95 from Erlang's formula of 1909."""
    _, gaps = poisson(num, load, 1, 3)
    waits = waits_of(served(gaps, np.ones(num)))
    assert waits.mean() == pytest.approx(load / (2 * (1 - load)), rel=BAR)
    assert order_statistic(waits, 0.95) == pytest.approx(p95, rel=BAR)


@pytest.mark.parametrize("law", ["erlang-2", "two lengths"])
def test_the_mean_wait_is_pollaczek_khinchine_for_any_service(law):
    num, load = 250_000, 0.7
    rng, gaps = poisson(num, load, 1, 4)
    if law == "erlang-2":
        service = rng.gamma(2.0, 0.5, num)
    else:  # mostly short, some long: what a fleet serves
        service = np.where(rng.random(num) < 0.1, 4.0, 2 / 3)
    service = scaled(service, 1.0)
    expected = load * np.square(service).mean() / (2 * (1 - load))
    assert waits_of(served(gaps, service)).mean() == pytest.approx(expected, rel=BAR)


def erlang_b(servers, offered):
    blocking = 1.0
    for k in range(1, servers + 1):
        blocking = offered * blocking / (k + offered * blocking)
    return blocking


@pytest.mark.parametrize(("servers", "load", "num"), [(2, 0.8, 400_000), (6, 0.7, 300_000)])
def test_several_servers_of_a_cluster_are_an_m_m_c_queue(servers, load, num):
    rng, gaps = poisson(num, load, servers, 5)
    result = served(gaps, exponential(rng, num), servers)
    blocking = erlang_b(servers, load * servers)
    delayed = blocking / (1 - load * (1 - blocking))
    rate = servers * (1 - load)
    waits = waits_of(result)
    assert (waits > 1e-9).mean() == pytest.approx(delayed, rel=BAR)
    assert waits.mean() == pytest.approx(delayed / rate, rel=BAR)
    expected = math.log(delayed / 0.05) / rate
    assert order_statistic(waits, 0.95) == pytest.approx(expected, rel=BAR)


@pytest.mark.parametrize("law", ["exponential", "constant"])
def test_budgets_that_refuse_block_as_erlang_b_whatever_the_service_law(law):
    """Separate lanes: floor(budget / weight) places each, at least as many servers."""
    num, offered = 150_000, {"short": 4.0, "long": 1.5}
    rng = np.random.default_rng(6)
    gaps = exponential(rng, num, 1 / sum(offered.values()))
    is_long = rng.random(num) < offered["long"] / sum(offered.values())
    service = exponential(rng, num) if law == "exponential" else np.ones(num)
    budget = BudgetController({"short": 5, "long": 7}, {"short": 1, "long": 3})
    result = served(gaps, service, 5 + 7 // 3, is_long, budget)
    assert (waits_of(result)[result.is_served] == 0).all()
    for cls, places in (("short", 5), ("long", 2)):
        share = float(result.of_class(cls).mean())
        blocking = erlang_b(places, share * sum(offered.values()))
        assert result.rejected_share(cls) == pytest.approx(blocking, rel=BAR)


def kaufman_roberts(budget, offered, weights):
    """Blocking per class of one shared budget."""
    q = [1.0]
    for j in range(1, budget + 1):
        terms = (offered[c] * w * q[j - w] for c, w in weights.items() if w <= j)
        q.append(sum(terms) / j)
    return {c: sum(q[budget - w + 1 :]) / sum(q) for c, w in weights.items()}


def test_a_shared_budget_blocks_as_kaufman_and_roberts_say():
    num, weights = 200_000, {"short": 1, "long": 3}
    rng = np.random.default_rng(7)
    gaps = exponential(rng, num, 1 / 6.0)
    is_long = rng.random(num) < 0.25
    budget = BudgetController({"all": 12}, weights, lanes=dict.fromkeys(weights, "all"))
    result = served(gaps, exponential(rng, num), 12, is_long, budget)
    long_share = float(is_long.mean())
    offered = {"short": 6 * (1 - long_share), "long": 6 * long_share}
    for cls, blocking in kaufman_roberts(12, offered, weights).items():
        assert result.rejected_share(cls) == pytest.approx(blocking, rel=BAR)


def test_several_servers_leave_as_the_earliest_free_one_says_bit_for_bit():
    rng = np.random.default_rng(8)
    gaps, service = rng.exponential(0.3, 2000), rng.exponential(1.0, 2000)
    result = served(gaps, service, 3)
    free = [0.0, 0.0, 0.0]
    for index, arrival in enumerate(result.workload.arrival_s.tolist()):
        free.sort()
        free[0] = max(arrival, free[0]) + service[index]
        assert result.finish_s[index] == free[0]
