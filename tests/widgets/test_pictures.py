"""The widgets' stored first pictures, which a page shows without a script."""

from tools.book.make_widgets import STORED, pictures


def test_the_stored_pictures_are_what_the_widgets_make(browser):
    drawn = pictures(browser)
    assert len(drawn) >= 3
    stored = {path.stem: path.read_text("utf8") for path in STORED.glob("*.html")}
    stale = sorted(name for name, html in drawn.items() if stored.get(name) != html)
    assert not stale, f"book/widgets/ has other pictures of {stale}: run `make widgets`"
    left = sorted(set(stored) - set(drawn))
    assert not left, f"book/widgets/ has pictures of {left}, which are no widgets"
