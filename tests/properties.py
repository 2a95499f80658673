"""How random cases are tried, and how a check of them must fail."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings


def options(examples, **more):
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
        **more,
    )


def must_fail(check, cases, *, examples=200, error=AssertionError, match=None):
    """A check of one case, such as one that a mutant breaks, fails in some case."""

    @options(examples, phases=[Phase.generate], report_multiple_bugs=False)
    @given(cases)
    def attempt(case):
        check(case)

    with pytest.raises(error, match=match):
        attempt()
