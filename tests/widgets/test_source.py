"""The widgets' script as a page gets it: shorter, and the same."""

import re

import pytest

from spmd_helpers._widgets import source

SHORTER = {
    "const a = 1;\n\n  const b = a + 2; // why\n": "const a=1;const b=a+2;",
    "return  x ? y : z;": "return x?y:z;",
    "f(a, + +b, c - -d);": "f(a,+ +b,c- -d);",
    "const s = 'a  // b' + \"c  d\";": "const s='a  // b'+\"c  d\";",
    "const s = `a  ${b ? `c  ${d}  e` : { f: 1 }.f}  g`;": (
        "const s=`a  ${b?`c  ${d}  e`:{f:1}.f}  g`;"
    ),
    "x.match(/[ /]  '/g); y = a / b / c;": "x.match(/[ /]  '/g);y=a/b/c;",
    "/** What it is. */\nfunction f() {\n  g();\n}\nh();": "function f(){g();}h();",
    # A name that is also a property's stays.
    "function counted(x) {\n  return x.parts;\n}\nconst parts = counted(y);\n": (
        "function _0(x){return x.parts;}const parts=_0(y);"
    ),
}


@pytest.mark.parametrize("script", SHORTER)
def test_what_is_text_stays_as_it_is(script):
    assert source.compact(script) == SHORTER[script]
    assert source.compact(SHORTER[script]) == SHORTER[script]


@pytest.mark.parametrize("name", source.WIDGETS)
def test_no_text_of_a_widget_is_lost(name):
    """Whatever a sentence of it has in quotes, the page's script has."""
    script = source.joined("page", name)
    shown = source.compact(script)
    assert len(shown) < 0.9 * len(script)
    words = re.findall(r'"([A-Za-z]+ [A-Za-z ,.()_]+)"', script)
    assert len(words) > 20
    assert all(f'"{one}"' in shown for one in words)
