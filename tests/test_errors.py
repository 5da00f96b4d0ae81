"""Checks of arguments: what counts as a count and as a number."""

import math

import numpy as np
import pytest

from k3core.errors import K3Error, require_count, require_number


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
