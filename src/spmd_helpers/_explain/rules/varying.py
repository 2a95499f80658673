"""Rules for errors of pmap, of meshes that meet, and of values that vary.

`Rule` says what the fields of one hold.
"""

from ..read import innermost
from .rule import Rule

PMAP = "01_pmap_mnist"
MODES = "05_three_modes"

RULES = (
    # pmap.
    Rule(
        code="pmap-rows",
        raised=("ValueError",),
        patterns=(
            r"^cannot select an axis to squeeze out which has size not equal to one,"
            r" got"
            r" shape=\((?P<rows>\d+),.*\) and dimensions=\(0,\)",
        ),
        where=innermost(r"pmap\.py:"),
        says="cannot select an axis to squeeze out which has size not equal to one,"
        " got shape=(ROWS, …)",
        means="pmap gives each device one row of the leading axis, and here each"
        " would get {rows}: the axis is {rows} times the number of devices.",
        instead="n = jax.device_count()\n"
        "x = x.reshape(n, -1, *x.shape[1:])  # or jit, which has no such rule",
        chapter=PMAP,
    ),
    Rule(
        code="pmap-rows-not-divisible",
        raised=("IndivisibleError", "ValueError"),
        patterns=(
            r"spec=P\('_internal_pmap_axis_name',?\).*? is partitioned (?P<parts>\d+)"
            r" times, but the dimension size is (?P<size>\d+) \(full shape:"
            r" (?P<shape>\(.*?\))",
        ),
        says="spec=P('_internal_pmap_axis_name') implies that array axis 0 is"
        " partitioned PARTS times, but the dimension size is SIZE",
        means="pmap gives each of {parts} devices one row of the leading axis, and"
        " the argument of shape {shape} has {size}. All mapped arguments have the same"
        " number of rows.",
        instead="x = x.reshape({parts}, -1, *x.shape[1:])  # {parts} rows, one a"
        " device\n"
        "jax.pmap(step, in_axes=(None, 0))  # None: not mapped, the same everywhere",
        chapter=PMAP,
    ),
    Rule(
        code="pmap-nothing-mapped",
        raised=("ValueError",),
        patterns=(r"^pmap requires at least one argument with a mapped axis",),
        says="pmap requires at least one argument with a mapped axis",
        means="No argument has a leading axis for pmap to hand out: they are"
        " scalars, or in_axes says None for all.",
        instead="jax.pmap(step, in_axes=(None, 0))(params, batch)",
        chapter=PMAP,
    ),
    Rule(
        code="pmap-scalar",
        raised=("IndexError",),
        patterns=(r"^tuple index out of range",),
        where=r"_mapped_axis_size",
        says="tuple index out of range, in pmap's _mapped_axis_size",
        means="pmap maps over a leading axis, and one leaf of its arguments has"
        " none: a scalar, such as Adam's count.",
        instead="jax.pmap(step, in_axes=(None, 0))(state, batch)  # state not mapped",
        chapter=PMAP,
    ),
    Rule(
        code="pmap-axis-size",
        raised=("ValueError",),
        patterns=(
            r"^Specified axis_size (?P<want>\d+) doesn't match received axis_size"
            r" (?P<have>\d+)",
        ),
        says="Specified axis_size WANT doesn't match received axis_size HAVE",
        means="pmap was told of {want} rows, and its arguments have {have}.",
        instead="jax.pmap(step)  # the arguments say how many rows there are",
        chapter=PMAP,
    ),
    Rule(
        code="pmap-out-axes",
        raised=("ValueError",),
        patterns=(r"^pytree structure error: .*? broadcast_prefix prefix_tree",),
        where=innermost(r"pmap\.py:"),
        says="pytree structure error at key path broadcast_prefix prefix_tree, from"
        " pmap",
        means="out_axes is a tree, and it is not built like what the function returns.",
        instead="jax.pmap(step, out_axes=0)  # one for all results",
        chapter=PMAP,
    ),
    Rule(
        code="nested-pmap",
        raised=("ValueError",),
        patterns=(
            r"^The context mesh AbstractMesh\('_internal_pmap_axis_name':"
            r" (?P<outer>\d+),"
            r".* should match the mesh passed to shard_map",
        ),
        says="The context mesh '_internal_pmap_axis_name' should match the mesh"
        " passed to shard_map",
        means="A pmap (or shard_map) runs inside a pmap over {outer} devices. Each"
        " has a mesh of its own, and they can't be nested.",
        instead="jax.shard_map(f, mesh=mesh, in_specs=P('data', 'model'),"
        " out_specs=P('data', 'model'))  # one mesh of two axes",
        chapter=PMAP,
    ),
    # Meshes that meet.
    Rule(
        code="nested-shard-map",
        raised=("ValueError",),
        patterns=(
            r"^The context mesh (?P<mesh>AbstractMesh\(.*?Manual.*?\)) should match the"
            r" mesh passed to shard_map",
        ),
        says="The context mesh MESH (Manual) should match the mesh passed to shard_map",
        means="This shard_map runs inside another one, over {mesh}. The inner one"
        " must not bring a mesh: it continues with the outer one's free axes.",
        instead="jax.shard_map(outer, mesh=mesh, axis_names={{'data'}}, ...)\n"
        "jax.shard_map(inner, axis_names={{'model'}}, ...)  # inside, no mesh=",
        chapter=MODES,
    ),
    Rule(
        code="another-mesh-is-set",
        raised=("ValueError",),
        patterns=(
            r"^The context mesh (?P<mesh>AbstractMesh\(.*?\)) should match the mesh"
            r" passed to shard_map (?P<mesh_other>Mesh\(.*?\)\))",
            r"context mesh (?P<mesh>AbstractMesh\(.*?\)) should match the aval mesh"
            r" (?P<mesh_other>AbstractMesh\(.*?\)) for shape",
        ),
        says="The context mesh MESH should match the mesh passed to shard_map, or"
        " of an argument: MESH OTHER",
        means="jax.set_mesh says {mesh}, and the shard_map or the array has"
        " {mesh_other}. A jax.set_mesh without `with` stays set.",
        instead="with jax.set_mesh(mesh):  # the mesh on which the arrays lie\n"
        "    y = f(x)",
        chapter="03_mesh_and_partitionspec",
    ),
    Rule(
        code="two-meshes",
        raised=("ValueError",),
        patterns=(
            r"^Mesh for all inputs should be equal\. Got one mesh:"
            r" (?P<mesh>AbstractMesh\(.*?\)) and another mesh:"
            r" (?P<mesh_other>AbstractMesh\(.*\))",
        ),
        says="Mesh for all inputs should be equal. Got one mesh: MESH and another"
        " mesh: MESH OTHER",
        means="The arrays lie on two meshes, {mesh} and {mesh_other}. Names, sizes"
        " and the axes' types must agree; the same devices are not enough.",
        instead="mesh = jax.make_mesh((4, 2), ('data', 'model'),"
        " axis_types=(AxisType.Auto,) * 2)  # once, for all\n"
        "y = jax.device_put(y, NamedSharding(mesh, P('data')))",
        chapter=MODES,
    ),
    Rule(
        code="no-mesh-is-set",
        raised=("ValueError",),
        patterns=(
            r"^Length of device assignment \d+ is not equal to the size of the mesh"
            r" (?P<count>\d+) of aval (?P<type>\S+?)\(",
        ),
        says="Length of device assignment 1 is not equal to the size of the mesh"
        " COUNT of aval TYPE",
        means="An Explicit mesh of {count} devices is in the types, and no mesh is"
        " set: a value that JAX makes by itself (a gradient's seed, zeros) lies on one"
        " device.",
        instead="with jax.set_mesh(mesh):\n    grads = jax.grad(loss)(params)",
        chapter=MODES,
    ),
    # Values that vary along an axis.
    Rule(
        code="carry-varies",
        raised=("TypeError",),
        patterns=(
            r"^(?P<loop>scan|while_loop) body function carry .*?[Tt]he input carry"
            r"(?: component)? (?P<name>\S+) has type (?P<type>\S+) but the"
            r" corresponding"
            r" output carry component has type (?P<type_out>\S+\{V:\(?(?P<axes>[\w,]+)"
            r"\)?\}), so the manual axis types do not match",
        ),
        says="LOOP body function carry input and output must have equal types, but"
        " NAME has TYPE and TYPE OUT: the manual axis types do not match",
        means="The carry {name} starts the same on all devices ({type}) and comes"
        " out different ({type_out}; V: names the axes). Inside shard_map that is part"
        " of its type.",
        instead="start = lax.pcast(start, {axes_code}, to='varying')  # before the"
        " {loop}; keep check_vma",
        chapter=MODES,
    ),
    Rule(
        code="carry-stops-varying",
        raised=("TypeError",),
        patterns=(
            r"^(?P<loop>scan|while_loop) body function carry .*?[Tt]he input carry"
            r"(?: component)? (?P<name>\S+) has type"
            r" (?P<type>\S+\{V:\(?(?P<axes>[\w,]+)"
            r"\)?\}) but the corresponding output carry component has type"
            r" (?P<type_out>\S+), so the manual axis types do not match",
        ),
        says="LOOP body function carry input and output must have equal types, but"
        " NAME has TYPE and TYPE OUT: the manual axis types do not match",
        means="The carry {name} starts different on each device ({type}; V: names"
        " the axes) and a collective makes it the same ({type_out}). Inside shard_map"
        " that is part of its type.",
        instead="return lax.pcast(c, {axes_code}, to='varying')  # at the end of"
        " the {loop}'s body",
        chapter=MODES,
    ),
    Rule(
        code="branches-vary",
        raised=("TypeError",),
        patterns=(
            r"^(?P<op>cond|switch) branches must have equal output types .*? has type"
            r" (?P<type>\S+) but the corresponding output of .*? has type"
            r" (?P<type_out>\S+), so the manual axis types do not match",
        ),
        says="OP branches must have equal output types: TYPE and TYPE OUT, the"
        " manual axis types do not match",
        means="One branch gives a value that differs between devices, the other one"
        " that is the same: {type} and {type_out} (V: names the axes).",
        instead="lambda v: lax.pcast(jnp.zeros(2), 'x', to='varying')  # the branch"
        " without V:",
        chapter=MODES,
    ),
    Rule(
        code="custom-gradient-varies",
        raised=("ValueError",),
        patterns=(
            r"^Custom VJP bwd rule .*? at (?P<name>output\S*) the bwd rule produced an"
            r" output of type (?P<type>\S+) corresponding to an input of type"
            r" (?P<type_out>\S+), so the manual axis types do not match",
        ),
        says="Custom VJP bwd rule must produce an output with the same type as the"
        " primal's argument: the manual axis types do not match",
        means="The argument is the same on all devices ({type_out}), so its"
        " gradient must be too; the rule gives {type}, each device's own part.",
        instead="return lax.psum(g, 'x')  # in bwd, for the argument that is the same",
        chapter=MODES,
    ),
    Rule(
        code="pcast-not-needed",
        raised=("ValueError",),
        patterns=(r"^Unsupported pcast from=(?P<state>\w+), to='(?P<want>\w+)'",),
        says="Unsupported pcast from=STATE, to='WANT'",
        means="The value is {state} already. pcast to '{want}' is for one that is"
        " the same on all devices.",
        instead="jax.typeof(x)  # shows V: and the axes; leave this pcast out",
        chapter=MODES,
    ),
    Rule(
        code="pcast-outside",
        raised=("ValueError",),
        patterns=(r"^(?:pvary|pcast) should be called under jax\.shard_map",),
        says="pvary should be called under jax.shard_map",
        means="pcast says how a value differs between devices, which only shard_map"
        " knows. Outside, an array is the whole array.",
        instead="jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...)  # and"
        " pcast in f",
        chapter=MODES,
    ),
)
