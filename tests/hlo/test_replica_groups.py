"""Replica groups in every spelling: the reader's axes must come back."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spmd_helpers._hlo.collectives import read_hlo
from tests.hlo.texts import DM, M42, D, M, one


def axes(groups, mesh, devices=8):
    op = f"all-reduce(%p), channel_id=1, replica_groups={groups}, to_apply=%add"
    collectives = read_hlo(one(op, devices=devices), mesh)
    return collectives[0].axes if collectives else None


@pytest.mark.parametrize(
    ("groups", "mesh", "expected"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", M42, M),
        ("{{0,2,4,6},{1,3,5,7}}", M42, D),
        ("{{7,5,3,1},{4,6,0,2}}", M42, D),  # neither order means anything here
        ("{{0,1,2,3,4,5,6,7}}", M42, DM),
        ("{}", M42, DM),
        ("[4,2]<=[8]", M42, M),
        ("[1,8]<=[8]", M42, DM),
        ("[2,4]<=[4,2]T(1,0)", M42, D),
        ("[2,4]<=[4,2]T(1,0), use_global_device_ids=true", M42, D),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", M42, D),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_1'}", M42, M),
        ("mesh['axis_0'=1,'axis_1'=4,'axis_2'=2] {'axis_1'}", M42, D),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_1','axis_0'}", M42, DM),
        ("mesh['axis_0'=2,'axis_1'=2,'axis_2'=2] {'axis_0','axis_1'}", M42, D),
        # The printed names lie: this mesh calls by 'data' what we call 'model'.
        ("mesh['model'=4,'data'=2] {'data'}", M42, M),
        ("mesh['a'=1,'b'=2,'c'=4], device_ids=([4,2]T(1,0)) {'c'}", M42, D),
        ("mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'b'}", M42, D),
        ("mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'a'}", M42, M),
        ("mesh['x'=8] {'x'}", {"x": 8}, ("x",)),
        ('mesh["x y"=8] {"x y"}', {"x": 8}, ("x",)),
        # Parts of an axis, in the reader's axes or as whole ones.
        ("mesh['x'=8] {'x':(4)2}", M42, M),
        ("mesh['x'=8] {'x':(1)4}", M42, D),
        ("mesh['x'=8] {'x':(1)2}", M42, ("data:(1)2",)),
        ("mesh['x'=8] {'x':(1)2}", {"x": 8}, ("x:(1)2",)),
        ("mesh['x'=8] {'x':(2)2}", {"x": 8}, ("x:(2)2",)),
        ("mesh['x'=8] {'x':(4)2}", {"x": 8}, ("x:(4)2",)),
        ("mesh['x'=8] {'x':(1)2,'x':(4)2}", {"x": 8}, ("x:(1)2", "x:(4)2")),
        ("mesh['x'=8] {'x':(2)4}", M42, ("data:(2)2", "model")),
        ("{{0,2,4},{1,3,5}}", {"x": 6}, ("x:(1)3",)),
        ("{{0,1,2},{3,4,5}}", {"x": 6}, ("x:(2)3",)),
        # Equal extents differ by stride only; an axis of size 1 is never named.
        ("[2,2]<=[4]", {"a": 2, "b": 2}, ("b",)),
        ("[2,2]<=[2,2]T(1,0)", {"a": 2, "b": 2}, ("a",)),
        ("[4,2]<=[2,2,2]T(0,2,1)", {"a": 2, "b": 2, "c": 2}, ("b",)),
        ("[2,4]<=[2,2,2]T(1,0,2)", {"a": 2, "b": 2, "c": 2}, ("a", "c")),
        ("[4,2]<=[8]", {"one": 1, "data": 4, "uno": 1, "model": 2}, M),
        # No choice of axes: nothing is named, and the groups tell.
        ("{{0,1},{2,4},{3,5},{6,7}}", M42, ()),
        ("{{0,1,2},{3,4,5,6,7}}", M42, ()),
        ("{{0,5},{2,7},{4,1},{6,3}}", M42, ()),
        # Groups of one device exchange nothing.
        ("{{0},{1},{2},{3},{4},{5},{6},{7}}", M42, None),
        ("[8,1]<=[8]", M42, None),
    ],
)
def test_spellings(groups, mesh, expected):
    devices = prod(mesh.values())
    assert axes(groups, mesh, devices) == expected


def test_groups_are_kept():
    op = "all-reduce(%p), replica_groups={{0,1},{2,4},{3,5},{6,7}}, to_apply=%add"
    (c,) = read_hlo(one(op), M42)
    assert (c.axes, c.groups) == ((), ((0, 1), (2, 4), (3, 5), (6, 7)))


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ("{{0,2},{2,4},{4,6},{6,0},{1,3},{3,5},{5,7},{7,1}}", D),
        ("{{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}}", M),
        ("{{0,0},{2,1},{4,2},{6,3},{1,4},{3,5},{5,6},{7,7}}", DM),
        ("{{0,3}}", DM),
        ("{{0,0},{1,1}}", None),
    ],
)
def test_permutes(pairs, expected):
    op = f"collective-permute(%p), channel_id=1, source_target_pairs={pairs}"
    collectives = read_hlo(one(op), M42)
    assert (collectives[0].axes if collectives else None) == expected


names = ["a", "b", "c", "d"]
meshes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def spellings(shape, chosen, draw):
    """Every way to print the groups along the axes `chosen`, made with NumPy."""
    rest = [i for i in range(len(shape)) if i not in chosen]
    size = prod(shape[i] for i in chosen)
    perm = rest + draw(st.permutations(chosen))
    ids = np.arange(prod(shape)).reshape(shape).transpose(perm).reshape(-1, size)
    shuffled = [draw(st.permutations(row.tolist())) for row in ids]
    shuffled = draw(st.permutations(shuffled))
    yield "{" + ",".join("{" + ",".join(map(str, g)) + "}" for g in shuffled) + "}"
    dims, order = ",".join(map(str, shape)), ",".join(map(str, perm))
    yield f"[{len(ids)},{size}]<=[{dims}]T({order})"
    if perm == sorted(perm):
        yield f"[{len(ids)},{size}]<=[{prod(shape)}]"
    if not chosen:
        return
    sizes = [f"'axis_{i}'={n}" for i, n in enumerate(shape)]
    grouped = ",".join(f"'axis_{i}'" for i in chosen)
    at = draw(st.integers(0, len(sizes)))
    wider = ",".join([*sizes[:at], "'one'=1", *sizes[at:]])
    yield f"mesh[{wider}] {{{grouped}}}"
    moved = ",".join(sizes[i] for i in perm)
    yield f"mesh[{moved}], device_ids=([{dims}]T({order})) {{{grouped}}}"
    listed = np.arange(prod(shape)).reshape(shape).transpose(perm).ravel()
    listed = ",".join(map(str, listed))
    yield f"mesh[{moved}], device_ids=({listed}) {{{grouped}}}"


@settings(max_examples=150, deadline=None)
@given(meshes, st.data())
def test_any_axes_come_back(shape, data):
    chosen = [i for i in range(len(shape)) if data.draw(st.booleans())]
    mesh = dict(zip(names, shape, strict=False))
    expected = tuple(names[i] for i in chosen if shape[i] > 1) or None
    for groups in spellings(shape, chosen, data.draw):
        assert axes(groups, mesh, prod(shape)) == expected, groups


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=3, max_size=3), st.data())
def test_any_part_of_an_axis_comes_back(factors, data):
    before, length, _ = factors
    outer, inner = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    mesh = {"a": outer, "x": prod(factors), "b": inner}
    sizes = ",".join(f"'{n}'={size}" for n, size in mesh.items())
    groups = f"mesh[{sizes}] {{'x':({before}){length}}}"
    is_all_devices = length == prod(factors)
    expected = (
        ("x" if is_all_devices else f"x:({before}){length}",) if length > 1 else None
    )
    assert axes(groups, mesh, prod(mesh.values())) == expected
