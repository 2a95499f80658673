"""A page with several players has one style: no rule may depend on their order."""

import re

import pytest

from spmd_helpers._figures import course_svg, reshape_svg, ring_svg, tree_svg


@pytest.mark.parametrize("module", [course_svg, reshape_svg, ring_svg, tree_svg])
def test_own_rules_are_stronger_than_those_of_all_players(module):
    selectors = re.findall(r"^([^{}\n]+?) \{", module._RULES, re.M)
    assert selectors
    for selector in selectors:
        # Not by an ancestor: what a frame shows through `use` has none.
        first, second = selector.removeprefix(".").split(".")
        assert first == second, selector
