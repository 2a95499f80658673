"""Rules for names that are gone or renamed: JAX's, Flax's and Optax's.

`Rule` says what the fields of one hold.
"""

from .rule import Rule

PMAP = "01_pmap_mnist"
JIT = "02_jit_sharding"
MESH = "03_mesh_and_partitionspec"
MODES = "05_three_modes"
TWO = "11_two_dimensions"
LOOP = "13_training_loop"
GONE = ("AttributeError", "ImportError", "ModuleNotFoundError")

_FROM = (
    r"^cannot import name '(?P<name>{names})' from 'jax\.{module}'",
    r"^module 'jax\.{module}' has no attribute '(?P<name>{names})'",
)


def _gone(module: str, names: str) -> tuple[str, ...]:
    """Patterns for a name that its module does not have, however it was asked for."""
    return tuple(
        one.replace("{module}", module).replace("{names}", names) for one in _FROM
    )


RULES = (
    # JAX.
    Rule(
        code="make-mesh-keyword",
        raised=("TypeError",),
        patterns=(
            r"^make_mesh\(\) got an unexpected keyword argument"
            r" '(?P<name>axis_shapes|axis_sizes)'",
        ),
        says="make_mesh() got an unexpected keyword argument 'NAME'",
        means="The sizes' name changed: axis_shapes on jax 0.10.2, axis_sizes on"
        " 0.12. Their position did not.",
        instead="mesh = jax.make_mesh((4, 2), ('data', 'model'))  # by position",
        chapter=MESH,
    ),
    Rule(
        code="with-mesh-is-old",
        raised=("DeprecationWarning",),
        patterns=(r"^'with mesh:' context manager has been deprecated",),
        says="`with mesh:` context manager has been deprecated",
        means="A mesh is set with jax.set_mesh today. It is no mere new name:"
        " arrays made under it are placed, whole on every device.",
        instead="with jax.set_mesh(mesh):\n    y = f(x)",
        chapter=MESH,
    ),
    Rule(
        code="use-mesh-is-gone",
        raised=GONE,
        patterns=_gone("sharding", "use_mesh"),
        says="module 'jax.sharding' has no attribute 'use_mesh'",
        means="jax.sharding.use_mesh became jax.set_mesh.",
        instead="with jax.set_mesh(mesh):\n    y = f(x)",
        chapter=MESH,
    ),
    Rule(
        code="experimental-shard-map",
        raised=("DeprecationWarning",),
        patterns=(r"^jax\.experimental\.shard_map is deprecated",),
        says="jax.experimental.shard_map is deprecated",
        means="shard_map is jax.shard_map today: check_rep is check_vma, auto= is"
        " axis_names=, and all but the function is given by name.",
        instead="jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...)",
        chapter=MODES,
    ),
    Rule(
        code="pvary-is-gone",
        raised=GONE,
        patterns=(
            r"^jax\.lax\.(?P<name>pvary) was deprecated",
            *_gone("lax", "pvary"),
        ),
        says="jax.lax.pvary was removed; module 'jax.lax' has no attribute 'pvary'",
        means="pvary, which marks a value as different on each device, became pcast.",
        instead="x = lax.pcast(x, 'x', to='varying')  # inside shard_map",
        chapter=MODES,
    ),
    Rule(
        code="device-put-replicated-is-gone",
        raised=GONE,
        patterns=(r"^jax\.(?P<name>device_put_(?:replicated|sharded)) is deprecated",),
        says="jax.NAME is deprecated; use jax.device_put instead",
        means="{name} made pmap's stack of copies. Today a copy on every device is"
        " a sharding, with no extra dimension.",
        instead="params = jax.device_put(params, NamedSharding(mesh, P()))  #"
        " copies\n"
        "x = jax.device_put(x, NamedSharding(mesh, P('data')))  # pieces",
        chapter=PMAP,
    ),
    Rule(
        code="sharding-class-is-gone",
        raised=GONE,
        patterns=_gone(
            "sharding",
            "PositionalSharding|PmapSharding|GSPMDSharding|XLACompatibleSharding"
            "|OpShardingSharding|MeshPspecSharding",
        ),
        says="cannot import name 'NAME' from 'jax.sharding'",
        means="{name} was removed. One class says how an array lies on a mesh:"
        " NamedSharding.",
        instead="NamedSharding(mesh, P('data'))",
        chapter=MESH,
    ),
    Rule(
        code="config-flag-is-gone",
        raised=("AttributeError",),
        patterns=(
            r"^Unrecognized config option:"
            r" (?P<name>jax_pmap_\w+|jax_parallel_functions_output_gda|jax_array)",
        ),
        says="Unrecognized config option: NAME",
        means="The flag {name} chose between an old behavior and a new one. The old"
        " one is gone, and the flag with it.",
        instead="step = jax.jit(step)  # and jax.device_put(x, NamedSharding(mesh,"
        " P('data')))",
        chapter=PMAP,
    ),
    Rule(
        code="xmap-is-gone",
        raised=GONE,
        patterns=(
            r"^No module named 'jax\.(?P<name>experimental\.maps"
            r"|interpreters\.sharded_jit|experimental\.global_device_array)'",
            *_gone("experimental", "maps|global_device_array"),
            r"^module 'jax' has no attribute '(?P<name>soft_pmap|xmap)'",
        ),
        says="No module named 'jax.experimental.maps'",
        means="xmap and what came with it were removed ({name}). jax.shard_map"
        " writes a program for one block, jit for the whole array.",
        instead="from jax.sharding import Mesh, NamedSharding, PartitionSpec as P\n"
        "jax.shard_map(f, mesh=mesh, in_specs=P('x'), out_specs=P('x'))",
        chapter=MODES,
    ),
    Rule(
        code="pjit-is-jit",
        raised=("DeprecationWarning", *GONE),
        patterns=(
            r"^jax\.experimental\.pjit\.(?P<name>pjit) has been deprecated",
            *_gone(
                r"(?:experimental|experimental\.pjit|interpreters\.pxla)",
                "PartitionSpec|with_sharding_constraint",
            ),
        ),
        says="jax.experimental.pjit.pjit has been deprecated, or: cannot import"
        " name 'NAME'",
        means="pjit is jit today, and what stood beside it has moved:"
        " jax.sharding.PartitionSpec, jax.lax.with_sharding_constraint.",
        instead="from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "step = jax.jit(step, out_shardings=NamedSharding(mesh, P()))",
        chapter=JIT,
    ),
    Rule(
        code="thread-resources-is-old",
        raised=("DeprecationWarning",),
        patterns=(r"^jax\.interpreters\.pxla\.thread_resources is deprecated",),
        says="jax.interpreters.pxla.thread_resources is deprecated",
        means="Code looks for the mesh of `with mesh:`. The mesh that jax.set_mesh"
        " sets is asked for otherwise.",
        instead="mesh = jax.sharding.get_abstract_mesh()",
        chapter=MESH,
    ),
    Rule(
        code="tree-map-is-gone",
        raised=GONE,
        patterns=(
            r"^module 'jax' has no attribute '(?P<name>tree_map|tree_multimap)'",
        ),
        says="module 'jax' has no attribute 'NAME'",
        means="jax.{name}, with which pmap code replicated its trees, became"
        " jax.tree.map.",
        instead="jax.tree.map(f, tree)",
        chapter=PMAP,
    ),
    Rule(
        code="path-of-keys",
        raised=("TypeError",),
        patterns=(
            r"^sequence item \d+: expected str instance, \S*?"
            r"(?P<kind>DictKey|GetAttrKey|SequenceKey|FlattenedIndexKey) found",
        ),
        says="sequence item 0: expected str instance, KIND found",
        means="A path in a tree is made of keys such as {kind}, not of texts.",
        instead="jax.tree_util.keystr(path, simple=True, separator='/')",
        chapter=TWO,
    ),
    # Flax and Optax.
    Rule(
        code="nnx-optimizer-wrt",
        raised=("TypeError",),
        patterns=(r"^Missing required argument '(?P<name>wrt)'\. As of Flax 0\.11",),
        says="Missing required argument `wrt`. As of Flax 0.11.0 …",
        means="nnx.Optimizer asks which variables it optimizes.",
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
        means="nnx.Optimizer no longer holds the model: both are given at each step.",
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
        " handed on whole.",
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
)
