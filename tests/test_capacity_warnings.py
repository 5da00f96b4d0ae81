"""Known production faults are found from a plan's numbers, and only where they bite."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.capacity.planner import Deployment, plan
from k3core.capacity.schemes import SCHEMES
from k3core.capacity.warnings import find_warnings
from k3core.i18n import has_text, t


def found(**changes):
    deployment = Deployment(**({"tp": 8, "mean_tokens": 65_536} | changes))
    return {warning.code: warning.values for warning in find_warnings(plan(deployment))}


@pytest.mark.parametrize(
    ("code", "bites", "spares"),
    [
        ("mean-above-limit", {"mean_tokens": 131_073}, {"mean_tokens": 131_072}),
        ("short-prompt", {"mean_tokens": 1536}, {"mean_tokens": 1537}),
        (
            "fixed-cost",
            {"rollback": "snapshots-align", "mean_tokens": 32_768},
            {"mean_tokens": 131_072},
        ),
        ("drafter-pads", {"drafter_layers": 5}, {"drafter_layers": 0}),
        ("page-padding", {"drafts": 0}, {"drafts": 7}),
        ("printed-tokens", {}, {"pool_rule": "split"}),
        ("reserved-slots", {"pool_rule": "split"}, {"pool_rule": "split", "slots_per_request": 4}),
        ("latent-copies", {}, {"tp": 1}),
        ("drafts-under-load", {"budget_gib": 100}, {"budget_gib": 10}),
        ("rounded-records", {"rollback": "flush-ring"}, {"rollback": "raw-inputs"}),
        ("checkpoint-per-block", {}, {"mla_dtype": "bfloat16", "state_dtype": "bfloat16",
                                      "quantum": 4096}),
    ],
)  # fmt: skip
def test_a_fault_is_named_where_it_bites_and_only_there(code, bites, spares):
    assert code in found(**bites)
    assert code not in found(**spares)


def test_drafter_padding_is_the_published_one():
    """vLLM Ascend #14314: groups of 24 grow to 29, 26.09 % of padding."""
    values = found(drafter_layers=5)["drafter-pads"]
    assert values["after"] == pytest.approx(0.2609, abs=1e-4)


@given(
    st.sampled_from(list(SCHEMES)),
    st.integers(0, 15),
    st.sampled_from(["blocks", "split"]),
    st.integers(1, 500_000),
)
def test_every_warning_has_words_for_its_numbers_and_a_source(scheme, drafts, rule, mean):
    deployment = Deployment(
        tp=8, rollback=scheme, drafts=drafts, pool_rule=rule, mean_tokens=mean, drafter_layers=2
    )
    for warning in find_warnings(plan(deployment)):
        key = f"capacity.warnings.{warning.code}"
        assert has_text(key)
        assert "{" not in t(key, **dict.fromkeys(warning.values, "1"))
        assert warning.source
