"""Rules for errors of two meshes in one program.

`Rule` documents the fields.
"""

from .rule import Rule

MODES = "05_three_modes"

SUBJECT = "Combining arrays of different meshes"
RULES = (
    Rule(
        code="nested-shard-map",
        raised=("ValueError",),
        patterns=(
            r"^The context mesh (?P<mesh>AbstractMesh\(.*?Manual.*?\)) should match the"
            r" mesh passed to shard_map",
        ),
        says="The context mesh MESH (Manual) should match the mesh passed to shard_map",
        means="This shard_map runs inside another one, over {mesh}. The inner one must"
        " not be given a mesh: it continues with the axes that the outer one left.",
        instead="jax.shard_map(outer, mesh=mesh, axis_names={{'data'}}, ...)\n"
        "jax.shard_map(inner, axis_names={{'model'}}, ...)  # inside, no mesh=",
        chapter=MODES,
    ),
    Rule(
        code="auto-and-explicit-mixed",
        raised=("ValueError",),
        patterns=(
            r"[Cc]ontext mesh AbstractMesh\((?P<axes>[^=]*), axis_types=\(Auto.*?\)"
            r" should"
            r" match the (?:aval mesh|mesh of sharding)"
            r" AbstractMesh\((?P=axes), axis_types=\(Explicit",
        ),
        says="context mesh AbstractMesh(AXES, Auto) should match the aval mesh"
        " AbstractMesh(AXES, Explicit)",
        means="An array of an Explicit mesh is used where the same axes are Auto."
        " Inside"
        " auto_axes that is an array from outside: auto_axes converts only what comes"
        " in as a positional argument.",
        instead="y = auto_axes(lambda x, w: x + w, out_sharding=spec)(x, w)  # w by"
        " position: not closed over, no keyword\n"
        "with jax.set_mesh(x.sharding.mesh): ...  # elsewhere: the array's own mesh",
        chapter=MODES,
    ),
    Rule(
        code="another-mesh-is-set",
        raised=("ValueError",),
        patterns=(
            r"^The context mesh (?P<mesh>AbstractMesh\(.*?\)) should match the mesh"
            r" passed to shard_map (?P<mesh_other>Mesh\(.*?\)\))",
            r"context mesh (?P<mesh>AbstractMesh\((?:(?!Manual).)*?\)).* should match"
            r" the aval mesh (?P<mesh_other>AbstractMesh\((?:(?!Manual).)*?\)).* for"
            r" shape",
        ),
        says="The context mesh MESH should match the mesh passed to shard_map, or"
        " of an argument: MESH OTHER",
        means="jax.set_mesh has set {mesh}, and the shard_map or the array has"
        " {mesh_other}. A jax.set_mesh without `with` stays set.",
        instead="with jax.set_mesh(mesh): y = f(x)  # the mesh of the arrays\n"
        "y = jax.pmap(f)(x)  # a pmap: outside of jax.set_mesh",
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
        means="The arrays are on two meshes, {mesh} and {mesh_other}. Names, sizes"
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
        " set: a value that JAX makes by itself (a gradient's seed, zeros) is on one "
        "device.",
        instead="with jax.set_mesh(mesh):\n    grads = jax.grad(loss)(params)",
        chapter=MODES,
    ),
)
