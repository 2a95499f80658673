"""Rules for errors of pmap, and of what a port from pmap leaves behind.

`Rule` documents the fields.
"""

from ..read import innermost
from .rule import Rule

PMAP = "01_pmap_mnist"
JIT = "02_jit_sharding"

SUBJECT = "Calling pmap, or porting from it"
RULES = (
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
        " would get {rows}: the axis is {rows} times the number of this process's"
        " devices.",
        instead="n = jax.local_device_count()  # of this process, not of all\n"
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
        means="No argument has a leading axis for pmap to map over: they are scalars,"
        " or in_axes is None for all.",
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
        means="axis_size is {want}, and the arguments have {have}.",
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
    Rule(
        code="pmap-under-set-mesh",
        raised=("ValueError",),
        patterns=(
            r"^The context mesh (?P<mesh>AbstractMesh\((?:(?!Manual).)*?\)).* should"
            r" match the mesh passed to shard_map Mesh\('_internal_pmap_axis_name'",
        ),
        says="The context mesh MESH should match the mesh passed to shard_map"
        " Mesh('_internal_pmap_axis_name': N)",
        means="jax.set_mesh has set a mesh, {mesh}, and pmap makes one of its own. The"
        " two don't work together.",
        instead="y = jax.pmap(f)(x)  # after the with block, or after"
        " jax.set_mesh(None)\n"
        "y = jax.jit(jax.vmap(f))(x)  # or no pmap: jit runs under the mesh",
        chapter=PMAP,
    ),
    Rule(
        code="named-pmap-under-set-mesh",
        raised=("ValueError",),
        patterns=(
            r"^The context mesh (?P<mesh>AbstractMesh\((?:(?!Manual).)*?\)).* should"
            r" match the mesh passed to shard_map Mesh\('(?P<axis>\w+)'",
        ),
        where=innermost(r"pmap\.py:"),
        says="The context mesh MESH should match the mesh passed to shard_map"
        " Mesh('AXIS': N), from pmap",
        means="jax.set_mesh has set a mesh, {mesh}, and pmap(axis_name={axis!r}) makes"
        " one of its own. The two don't work together.",
        instead="y = jax.pmap(f)(x)  # after the with block, or after"
        " jax.set_mesh(None)\n"
        "y = jax.jit(jax.vmap(f, axis_name={axis!r}))(x)  # or no pmap",
        chapter=PMAP,
    ),
    # What a port leaves behind.
    Rule(
        code="pmap-of-a-placed-array",
        raised=("ValueError",),
        patterns=(
            r"^Sharding passed to jit does not match the sharding on the respective"
            r" arg\. .*? arg sharding: (?P<sharding>.*?) for arg type: (?P<type>\S+)",
        ),
        where=innermost(r"pmap\.py:"),
        says="Sharding passed to jit does not match the sharding on the respective"
        " arg … SHARDING for arg type: TYPE, from pmap",
        means="pmap would hand out the leading axis of {type}, which is placed already:"
        " {sharding}. In a ported program no axis counts devices: statistics of 8"
        " channels would be averaged over the channels.",
        instead="batch_stats = state.batch_stats  # ported: delete the pmapped pmean\n"
        "y = jax.pmap(f)(np.asarray(x))  # only if row i of x is device i's own",
        chapter=PMAP,
    ),
    Rule(
        code="pmap-argument-of-jit",
        raised=("TypeError",),
        patterns=(
            r"^jit\(\) got an unexpected keyword argument"
            r" '(?P<name>axis_name|in_axes|out_axes|axis_size)'",
        ),
        says="jit() got an unexpected keyword argument 'NAME'",
        means="{name} is an argument of pmap and vmap. jit maps over no axis: its"
        " function sees full-size arrays. As the first step of a port, vmap takes the"
        " mapped axis over.",
        instead="step = jax.jit(jax.vmap(body, in_axes=(None, 0), axis_name='batch'))\n"
        "step = jax.jit(step)  # at the end of the port: no mapped axis in step",
        chapter=PMAP,
    ),
    Rule(
        code="static-broadcasted-argnums",
        raised=("TypeError",),
        patterns=(
            r"^jit\(\) got an unexpected keyword argument"
            r" '(?P<name>static_broadcasted_argnums)'",
        ),
        says="jit() got an unexpected keyword argument 'NAME'",
        means="{name} is pmap's name; jit's is static_argnums.",
        instead="step = jax.jit(step, static_argnums=(1,))",
        chapter=PMAP,
    ),
    Rule(
        code="vmap-output-differs",
        raised=("ValueError",),
        patterns=(
            r"^vmap has mapped output \(axis_name=(?P<axis>\w+)\) but out_axes is None",
        ),
        says="vmap has mapped output (axis_name=AXIS) but out_axes is None",
        means="out_axes=None promises one result for all rows, and nothing made it the"
        " same along {axis!r}. In a port of a pmapped step the pmean of the gradients"
        " is missing.",
        instead="grads = lax.pmean(grads, {axis!r})  # before the update\n"
        "jax.vmap(step, out_axes=0, axis_name={axis!r})  # or one result for each row",
        chapter=PMAP,
    ),
    Rule(
        code="key-array-for-one-key",
        raised=("ValueError",),
        patterns=(
            r"^(?P<op>\w+) accepts a single key, but was given a key array of shape"
            r" (?P<shape>\(.*?\)) != \(\)",
        ),
        says="OP accepts a single key, but was given a key array of shape SHAPE != ()",
        means="{op} takes one key, and got keys of shape {shape}. pmap code splits a"
        " key, one for each device. Under jit one key serves the full array; inside"
        " shard_map, keys[0] is the device's own.",
        instead="noise = jax.random.normal(key, x.shape)  # under jit: one key\n"
        "noise = jax.vmap(lambda k: jax.random.normal(k, (4,)))(keys)  # one draw a"
        " key",
        chapter=PMAP,
    ),
    Rule(
        code="get-metrics-of-scalars",
        raised=("ValueError",),
        patterns=(r"^axis 0 is out of bounds for array of dimension 0",),
        where=r"common_utils\.py",
        says="axis 0 is out of bounds for array of dimension 0, from Flax's"
        " get_metrics",
        means="get_metrics drops the device axis of pmap's results. Under jit a metric"
        " is a scalar: there is no device axis to drop.",
        instead="metrics = common_utils.stack_forest(jax.device_get(metrics))",
        chapter=PMAP,
    ),
)
