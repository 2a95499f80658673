"""The widgets' stored first pictures, which a page shows without a script."""

from tools.book.make_widgets import STORED, pictures


def test_the_stored_pictures_are_what_the_widgets_make(browser):
    made = pictures(browser)
    assert len(made) >= 3
    stored = {path.stem: path.read_text("utf8") for path in STORED.glob("*.html")}
    stale = sorted(name for name, html in made.items() if stored.get(name) != html)
    assert not stale, f"book/widgets/ has other pictures of {stale}: run `make widgets`"
    left = sorted(set(stored) - set(made))
    assert not left, f"book/widgets/ has pictures of {left}, which are no widgets"
