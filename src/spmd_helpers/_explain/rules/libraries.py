"""Rules for errors of Flax, Optax and Orbax.

`Rule` documents the fields.
"""

from ..read import innermost
from .rule import Rule

PMAP = "01_pmap_mnist"
TWO = "11_two_dimensions"
LOOP = "13_training_loop"
HOSTS = "16_many_hosts"

SUBJECT = "Using Flax, Optax or Orbax"
RULES = (
    Rule(
        code="nnx-optimizer-wrt",
        raised=("TypeError",),
        patterns=(r"^Missing required argument '(?P<name>wrt)'\. As of Flax 0\.11",),
        says="Missing required argument `wrt`. As of Flax 0.11.0 …",
        means="nnx.Optimizer needs to know which variables it optimizes.",
        instead="optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)",
        chapter=TWO,
    ),
    Rule(
        code="nnx-optimizer-update",
        raised=("TypeError", "AttributeError"),
        patterns=(
            r"^Missing required argument '(?P<name>grads)'\. As of Flax 0\.11",
            r"^Optimizer does not have attribute '(?P<name>model)' since Flax 0\.11",
        ),
        says="Missing required argument `grads`, or: Optimizer does not have"
        " attribute 'model' since Flax 0.11.0",
        means="nnx.Optimizer no longer stores the model: both are given at each step.",
        instead="optimizer.update(model, grads)",
        chapter=TWO,
    ),
    Rule(
        code="nnx-needs-a-mesh",
        raised=("ValueError",),
        patterns=(
            r"^An auto mesh context or metadata is required if creating a variable with"
            r" annotation \w+=(?P<spec>P\(.*?\))\.",
        ),
        says="An auto mesh context or metadata is required if creating a variable"
        " with annotation SPEC",
        means="A parameter annotated {spec} is made in pieces at once, so the mesh"
        " must be set while the model is built.",
        instead="with jax.set_mesh(mesh):  # Auto axes\n"
        "    model = Model(rngs=nnx.Rngs(0))",
        chapter=TWO,
    ),
    Rule(
        code="nnx-sharding-name",
        raised=("DeprecationWarning",),
        patterns=(
            r"^'(?P<name>sharding|sharding_names)' is deprecated, use 'out_sharding'",
        ),
        says="'NAME' is deprecated, use 'out_sharding' instead",
        means="The annotation of an nnx variable is called out_sharding today.",
        instead="nnx.Param(value, out_sharding=('data', 'model'))",
        chapter=TWO,
    ),
    Rule(
        code="optax-arguments",
        raised=("ValueError",),
        patterns=(r"^The number of updates and states has to be the same in chain",),
        says="The number of updates and states has to be the same in chain",
        means="Optax's update takes the gradients, then the optimizer's state. What"
        " came second is no state of this optimizer.",
        instead="updates, state = tx.update(grads, state, params)\n"
        "params = optax.apply_updates(params, updates)",
        chapter=LOOP,
    ),
    Rule(
        code="optax-needs-params",
        raised=("ValueError",),
        patterns=(
            r"^You are using a transformation that requires the current value of param",
        ),
        says="You are using a transformation that requires the current value of"
        " parameters",
        means="This optimizer reads the parameters too (weight decay does).",
        instead="updates, state = tx.update(grads, state, params)",
        chapter=LOOP,
    ),
    Rule(
        code="optax-returns-two",
        raised=("ValueError",),
        patterns=(
            r"pytree structure error: .*?full pytree has a subtree of different type"
            r" <class '(?P<kind>tuple)'>",
        ),
        where=r"apply_updates",
        says="pytree structure error in optax.apply_updates: KIND",
        means="Optax's update returns a pair, updates and state, and the pair was"
        " passed on as it is.",
        instead="updates, state = tx.update(grads, state, params)\n"
        "params = optax.apply_updates(params, updates)",
        chapter=LOOP,
    ),
    Rule(
        code="flax-shard-rows",
        raised=("TypeError", "ValueError"),
        patterns=(
            r"^cannot reshape array of shape (?P<shape>\(.*?\)) \(size \d+\) into shape"
            r" \((?P<parts>\d+), -1",
        ),
        where=r"common_utils\.py:shard",
        says="cannot reshape array of shape SHAPE into shape (PARTS, -1, …), from"
        " Flax's shard",
        means="Flax's shard() lays a batch out for pmap, one row a device, and"
        " {parts} devices do not divide the rows of {shape}.",
        instead="x = jax.device_put(x, NamedSharding(mesh, P('data')))  # no extra"
        " dimension; the rows must divide here too",
        chapter=PMAP,
    ),
    # Flax's logical names.
    Rule(
        code="boxed-parameter",
        raised=("AttributeError", "TypeError"),
        patterns=(
            r"^unsupported operand type\(s\) for \S+: .*?'(?P<kind>(?:Logically)?"
            r"Partitioned)'",
            r"requires ndarray or scalar arguments, got <class 'flax\.\S*?\.(?P<kind>"
            r"(?:Logically)?Partitioned)'>",
            r"^'(?P<kind>(?:Logically)?Partitioned)' object has no attribute",
        ),
        says="unsupported operand type(s) for @: 'KIND' and …",
        means="Flax keeps an annotated parameter in a box, {kind}, with the names of"
        " its"
        " axes. The array is inside.",
        instead="variables = nn.unbox(variables)  # nn: flax.linen",
        chapter=TWO,
    ),
    Rule(
        code="logical-name-twice",
        raised=("ValueError",),
        patterns=(
            r"^Unsupported: Dimensions (?P<axes>\(.*?\)) occur more than once in array",
        ),
        says="Unsupported: Dimensions AXES occur more than once in array names",
        means="Flax's logical names of one array must differ, and {axes} stands in it"
        " twice. Two names may map to one mesh axis: the first takes it.",
        instead="names = ('embed', 'embed_out')  # and a rule for each",
        chapter=TWO,
    ),
    Rule(
        code="logical-name-without-rule",
        raised=("ValueError",),
        patterns=(
            r"^Resource axis: (?P<axis>.+?) of (?P<spec>P\(.*\)) is not found in mesh:"
            r" (?P<axes>\('.*?\))",
        ),
        where=r"-packages[/\\]flax[/\\]",
        says="Resource axis: AXIS of SPEC is not found in mesh: AXES, from Flax",
        means="Flax takes {axis!r} for an axis of the mesh, which has {axes}. No rule"
        " maps this logical name to a mesh axis, or a rule maps to a name that the mesh"
        " does not have.",
        instead="with jax.set_mesh(mesh), nnx.logical_axis_rules([('embed',"
        " {first!r})]): model = Model(rngs)  # each: name, mesh axis\n"
        "nn.logical_to_mesh_sharding(specs, mesh, [('embed', {first!r})])  # in Linen",
        chapter=TWO,
    ),
    Rule(
        code="nnx-mesh-is-empty",
        raised=("ValueError",),
        patterns=(
            r"^Mesh must have all axes as Explicit or all axes as Auto\. Got mixed axis"
            r" types: \(\)",
        ),
        says="Mesh must have all axes as Explicit or all axes as Auto. Got mixed axis"
        " types: ()",
        means="nnx was given a mesh without axes: that of `with mesh:`, which is empty"
        " where jax.set_mesh set the mesh, or none is set.",
        instead="with jax.set_mesh(mesh):  # and no mesh= in with_partitioning\n"
        "    model = Model(rngs=nnx.Rngs(0))",
        chapter=TWO,
    ),
    # Orbax.
    Rule(
        code="checkpoint-of-other-devices",
        raised=("ValueError",),
        patterns=(
            r"^Topology mismatch detected\. The checkpoint was saved with a different",
            r"^sharding passed to deserialization should be specified, concrete and",
        ),
        says="Topology mismatch detected. The checkpoint was saved with a different"
        " topology than the current one",
        means="The checkpoint was saved from other devices, and without a target Orbax"
        " restores each array as it was placed. A target states how it is placed here.",
        instead="target = {{'w': jax.ShapeDtypeStruct((8, 8), jnp.float32,"
        " sharding=NamedSharding(mesh, P('data')))}}  # the saved tree\n"
        "state = ocp.StandardCheckpointer().restore(path, target)",
        chapter=HOSTS,
    ),
    Rule(
        code="checkpoint-of-other-devices-in-old-orbax",
        raised=("ValueError",),
        patterns=(
            r"^cannot reshape array of size (?P<count>\d+) into shape"
            r" (?P<shape>\(.*\))",
        ),
        where=innermost(r"orbax[^\n]*:_deserialize_sharding"),
        says="cannot reshape array of size COUNT into shape SHAPE, from Orbax",
        means="The checkpoint was saved from a mesh of shape {shape}, and here are"
        " {count} devices. Without a target Orbax restores each array as it was"
        " placed.",
        instead="target = {{'w': jax.ShapeDtypeStruct((8, 8), jnp.float32,"
        " sharding=NamedSharding(mesh, P('data')))}}  # the saved tree\n"
        "state = ocp.StandardCheckpointer().restore(path, target)",
        chapter=HOSTS,
    ),
    Rule(
        code="checkpoint-has-another-shape",
        raised=("ValueError",),
        patterns=(
            r"^Requested shape: (?P<shape>\(.*?\)) is not compatible with the stored"
            r" shape:"
            r" (?P<shape_have>\(.*?\))",
        ),
        says="Requested shape: SHAPE is not compatible with the stored shape: SHAPE"
        " HAVE",
        means="The target has the shape {shape}, and the checkpoint has {shape_have}. A"
        " sharding may change when an array is restored, its shape not.",
        instead="jax.ShapeDtypeStruct({shape_have}, dtype, sharding=sharding)  # in the"
        " target",
        chapter=HOSTS,
    ),
    Rule(
        code="checkpoint-has-another-tree",
        raised=("ValueError",),
        patterns=(
            r"^User-provided restore item and on-disk value metadata tree structures do"
            r" not match",
        ),
        says="User-provided restore item and on-disk value metadata tree structures do"
        " not match",
        means="The target's keys are not those that were saved. In the message, MISSING"
        " under Source is a key that only the checkpoint has, under Target one that"
        " only"
        " your target has.",
        instead="print(checkpointer.metadata(path).item_metadata)  # what was saved\n"
        "state = checkpointer.restore(path)  # no target: all that was saved",
        chapter=HOSTS,
    ),
    Rule(
        code="checkpoint-path-is-relative",
        raised=("ValueError",),
        patterns=(r"^Checkpoint path should be absolute\. Got (?P<value>\S+)",),
        says="Checkpoint path should be absolute. Got VALUE",
        means="Orbax takes absolute paths only. The error is raised in a background"
        " thread, so it can appear in a later call.",
        instead="path = pathlib.Path(path).absolute()",
        chapter=HOSTS,
    ),
    Rule(
        code="checkpoint-exists",
        raised=("ValueError",),
        patterns=(r"^Destination (?P<value>\S+) already exists",),
        where=r"-packages[/\\]orbax[/\\]",
        alone=True,
        says="Destination VALUE already exists, from Orbax",
        means="Orbax does not overwrite a checkpoint by default.",
        instead="checkpointer.save(path, state, force=True)  # or another path",
        chapter=HOSTS,
    ),
)
