"""Findings of a compiled text alone."""

from spmd_helpers._core.source_lines import place_name
from spmd_helpers._findings.evidence import Evidence
from spmd_helpers._findings.find import find
from spmd_helpers._hlo.collectives import collectives_of, read_module
from spmd_helpers._hlo.work import work


def of_text(text, mesh_shape):
    """What is found where only a compiled program's text is known."""
    module = read_module(text)
    return find(
        Evidence(
            inputs=(),
            outputs=(),
            jaxpr=None,
            module=module,
            collectives=collectives_of(module, mesh_shape, place_name),
            mesh_shape=mesh_shape,
            work=work(module, mesh_shape),
            carry=(),
            platform="",
        )
    )
