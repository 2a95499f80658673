"""Rules for names that are gone or renamed in JAX.

`Rule` documents the fields.
"""

from .rule import Rule

PMAP = "01_pmap_mnist"
JIT = "02_jit_sharding"
MESH = "03_mesh_and_partitionspec"
MODES = "05_three_modes"
TWO = "11_two_dimensions"
MEMORY = "09_memory_math"
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


SUBJECT = "Using a name that changed"
RULES = (
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
        means="A mesh is set with jax.set_mesh today. It is more than a new name:"
        " arrays made under it are placed, replicated on every device.",
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
        means="{name} stacked replicas for pmap. Today an array is replicated by its"
        " sharding, with no extra dimension.",
        instead="params = jax.device_put(params, NamedSharding(mesh, P()))  #"
        " replicated\n"
        "x = jax.device_put(x, NamedSharding(mesh, P('data')))  # sharded",
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
        means="{name} was removed. One class states how an array is placed on a mesh:"
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
        means="xmap and its companions were removed ({name}). With jax.shard_map you"
        " write the program of one shard, with jit that of the global array.",
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
        means="pjit is jit today, and its companions have new names:"
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
        " sets has another accessor.",
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
    Rule(
        code="vma-is-gone",
        raised=("AttributeError", "TypeError"),
        patterns=(
            r"^ShapeDtypeStruct\.__init__\(\) got an unexpected keyword argument"
            r" '(?P<name>vma)'",
            r"^'ShapedArray' object has no attribute '(?P<name>vma)'",
        ),
        says="ShapeDtypeStruct.__init__() got an unexpected keyword argument 'NAME',"
        " or: 'ShapedArray' object has no attribute 'NAME'",
        means="The axes along which a value varies were called {name}. Since JAX 0.10"
        " they are a part of manual_axis_type.",
        instead="jax.typeof(x).manual_axis_type.varying  # in place of .vma\n"
        "jax.ShapeDtypeStruct(x.shape, x.dtype,"
        " manual_axis_type=jax.typeof(x).manual_axis_type)",
        chapter=MODES,
    ),
    Rule(
        code="transfer-to-memory-kind-is-gone",
        raised=GONE,
        patterns=_gone("sharding", "TransferToMemoryKind"),
        says="module 'jax.sharding' has no attribute 'TransferToMemoryKind'",
        means="{name} became jax.memory.Space, with a member for the device's memory"
        " and one for the host's.",
        instead="x = jax.device_put(x, jax.memory.Space.Device)",
        chapter=MEMORY,
    ),
    Rule(
        code="axis-resources-is-gone",
        raised=("TypeError",),
        patterns=(
            r"^p?jit\(\) got an unexpected keyword argument"
            r" '(?P<name>in_axis_resources|out_axis_resources)'",
        ),
        says="jit() got an unexpected keyword argument 'NAME'",
        means="{name} was pjit's argument. jit's are in_shardings and out_shardings,"
        " and take a NamedSharding, or a PartitionSpec where a mesh is set.",
        instead="step = jax.jit(step, out_shardings=NamedSharding(mesh, P('data')))",
        chapter=JIT,
    ),
)
