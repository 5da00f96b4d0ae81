"""A plan refuses sizes that no machine has, by name."""

import math

import pytest

from k3core.capacity.planner import MAX_BUDGET_GIB, MAX_CONTEXT, Deployment, plan


@pytest.mark.parametrize("budget_gib", [0, -1, math.inf, math.nan, 1e300, MAX_BUDGET_GIB * 2])
def test_an_impossible_budget_is_refused(budget_gib):
    with pytest.raises(ValueError, match="budget_gib="):
        plan(Deployment(budget_gib=budget_gib))


@pytest.mark.parametrize("context", [0, -1, MAX_CONTEXT + 1])
def test_an_impossible_context_is_refused(context):
    with pytest.raises(ValueError, match="context="):
        plan(Deployment(context=context))
