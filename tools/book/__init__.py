"""Makes the book: notebooks, generated pages, first pictures of widgets, the site."""
