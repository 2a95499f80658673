"""How a record shows itself: as text under `print`, as HTML in a notebook."""

from collections.abc import Container

from .tables import Table


class InNotebook:
    """What has a view in a notebook: `str()` of it says the same.

    A class that is made of it defines `_html`, and `__str__` or `__repr__`.
    """

    def _html(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(
        self,
        include: Container[str] | None = None,
        exclude: Container[str] | None = None,
    ) -> dict[str, str]:
        return {"text/html": self._html(), "text/plain": str(self)}


class InTable(InNotebook):
    """A report that is a table, as text and as HTML: it defines `_shown`."""

    def _shown(self) -> Table:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._shown().text()

    def _html(self) -> str:
        return self._shown().html()
