"""Checks of arguments: what counts as a count and as a number."""

import math

import numpy as np
import pytest

from k3core.errors import (
    K3Error,
    require_count,
    require_counts,
    require_number,
    require_range,
    require_type,
)


@pytest.mark.parametrize("value", [3, np.int64(3), np.float32(3.0), 3.0])
def test_a_number_comes_back_as_a_float(value):
    assert require_number("load", value, least=3, most=3) == 3.0


@pytest.mark.parametrize("value", ["3", None, True, math.nan, math.inf, [3], 2.9, 4.1])
def test_what_is_no_number_in_the_bounds_is_refused_by_name(value):
    with pytest.raises(K3Error, match=r"^load=.* must be a finite number >= 3 and <= 4$"):
        require_number("load", value, least=3, most=4)


def test_an_open_bound_excludes_itself():
    with pytest.raises(K3Error, match=r"> 0$"):
        require_number("rate", 0.0, above=0)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 9])
def test_what_is_no_count_is_refused_by_name(value):
    with pytest.raises(K3Error, match=r"^pages=.* must be an integer >= 0 and <= 8$"):
        require_count("pages", value, most=8)


@pytest.mark.parametrize("values", [[1, 2], (np.int64(1), 2), range(1, 3), np.array([1, 2])])
def test_counts_come_back_as_a_tuple_of_ints(values):
    assert require_counts("lens", values, 1) == (1, 2)


@pytest.mark.parametrize(
    "values", ["12", b"12", {1: 2}, None, 3, np.array(3), [1, 0], [1.0], [[1]]]
)
def test_what_are_no_counts_is_refused_by_name(values):
    with pytest.raises(K3Error, match="lens"):
        require_counts("lens", values, 1)


@pytest.mark.parametrize(
    ("start", "stop"), [(-1, 2), (2, 1), (0, 5), ("0", 2), (0, None), (0, True)]
)
def test_a_range_outside_is_refused_with_both_ends(start, stop):
    with pytest.raises(K3Error, match=r"rows .*\.\..* are outside of 0\.\.4"):
        require_range("rows", start, stop, 4)


def test_a_value_of_another_type_is_shown_short():
    with pytest.raises(K3Error, match=r"^rule=.{80} must be a dict$"):
        require_type("rule", "x" * 500, dict)
    assert require_type("rule", {}, dict) == {}
