"""A collective that plays: in a notebook as HTML, under `print` as text."""

from functools import cached_property
from typing import TYPE_CHECKING

from .._core.notebook import InNotebook
from .._core.words import table, wrapped
from .._errors import MeshMismatch, NotUnderstood
from .._hlo.collectives import Collective
from .._shardings.from_jax import read_mesh
from . import svg
from .picture import Picture, picture
from .schedule import check_played, devices

if TYPE_CHECKING:
    from .._shardings.types import MeshLike


class CollectivePlayer(InNotebook):
    """Plays a collective hop by hop: which device sends which shard to which.

    A notebook shows it when a cell ends with it; it plays there, and on a page made
    from the notebook, without a kernel. `print` gives all frames as text.

    An all-gather, a reduce-scatter and an all-reduce are played on a ring, which
    `Collective.wire_bytes` counts; an all-to-all as exchanges of pairs. After the last
    frame a device has sent `wire_bytes`. Hardware may take other ways.

    >>> text = '''
    ... HloModule jit_f, num_partitions=4
    ...
    ... ENTRY main {
    ...   p = f32[6] parameter(0)
    ...   ROOT r = f32[12] all-gather(p), replica_groups=[2,2]<=[4], dimensions={0}
    ... }
    ... '''
    >>> import spmd_helpers as spmd
    >>> (gather,) = spmd.read_hlo(text, {"data": 2, "model": 2})
    >>> spmd.CollectivePlayer(gather, mesh={"data": 2, "model": 2})
    all-gather over model
    2 groups of 2 devices, float32; 24 B per device before, 48 B after
    <BLANKLINE>
    Before. Each device has one shard, 24 B.
    sent per device: 0 B
    device 0  0 ·
    device 1  · 1
    device 2  2 ·
    device 3  · 3
    <BLANKLINE>
    Hop 1 of 1. Each device sends its shard to the next device of its group. Device
    0 receives shard 1 from device 1. Now every device has all 2 shards, 48 B.
    sent per device: 24 B in all
    device 0  0 1
    device 1  0 1
    device 2  2 3
    device 3  2 3
    <BLANKLINE>
    Each shard has one color and one name: equal cells hold equal values. Devices
    are numbered by their position in the mesh.

    Args:
        collective: one of `xray(f, x).collectives` or of `read_hlo(text, mesh)`: an
            all-gather, a reduce-scatter, an all-reduce, an all-to-all or a
            collective-permute, over any mesh. Of more than eight devices in a group
            the first and the last four are drawn.
        mesh: the mesh of the program, for the names of its groups: a Mesh, an
            AbstractMesh, or a dict from axis name to number of devices.

    Attributes:
        collective: what is played.

    Raises:
        NotUnderstood: `collective` is no Collective, or of another kind, or has no
            groups; or is an all-reduce with fewer elements than a group has devices;
            or `mesh` is no mesh.
        MeshMismatch: the mesh has fewer devices than the collective.

    Used in chapters 04 and 05.
    """

    def __init__(
        self, collective: Collective, *, mesh: "MeshLike | None" = None
    ) -> None:
        try:
            check_played(collective)
            shape = {} if mesh is None else dict(read_mesh(mesh).shape)
            if mesh is not None:
                _check_mesh(collective, read_mesh(mesh).size, shape)
        except (NotUnderstood, MeshMismatch) as error:
            raise error.with_traceback(None) from None
        self.collective = collective
        self._mesh = shape

    def __str__(self) -> str:
        return _twin(self._picture)

    __repr__ = __str__

    @cached_property
    def _picture(self) -> Picture:
        return picture(self.collective, self._mesh)

    def _html(self) -> str:
        return svg.html(self._picture)


def _check_mesh(collective: Collective, size: int, shape: dict[str, int]) -> None:
    most = devices(collective)[-1]
    if most >= size:
        raise MeshMismatch(
            f"mesh={shape} has {size} devices, and the collective has a device at "
            f"position {most}; give the mesh of the program."
        )


def _twin(shown: Picture) -> str:
    """All frames as text, and the same words."""
    said = shown.words
    parts = [f"{said.title}\n{'; '.join(said.facts)}"]
    for step in shown.steps:
        rows = table([(f"device {device}", row) for device, row in step.rows])
        happens = wrapped(f"{step.heading}. {step.sentence}")
        parts.append(f"{happens}\n{said.counter}: {step.sent}\n{rows}")
    parts.append(wrapped(" ".join(said.notes)))
    return "\n\n".join(parts)
