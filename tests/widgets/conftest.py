"""What the tests of the widgets' pages use."""

import contextlib

import pytest


@pytest.fixture
def context(browser):
    with contextlib.closing(browser.new_context()) as fresh:
        yield fresh
