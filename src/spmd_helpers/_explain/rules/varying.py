"""Rules for errors of values that vary along an axis, inside shard_map.

`Rule` documents the fields.
"""

from ..read import innermost
from .rule import Rule

MODES = "05_three_modes"

# The innermost line that is not a library's calls no loop.
NO_LOOP = (
    r":[\w<>]+: (?![^\n]*\b(?:scan|while_loop|fori_loop|map|cond|switch"
    r"|associative_scan)\()[^\n]*"
)
_CARRY = (
    r"^(?P<loop>scan|while_loop) body function carry .*?[Tt]he input carry"
    r"(?: component)? (?P<name>\S+) has type (?P<type>\S+) but the corresponding"
    r" output carry component has type (?P<type_out>\S+), so the"
    r" (?:manual axis types|varying manual axes) do not match"
)

SUBJECT = "Mixing what varies in shard_map"
RULES = (
    Rule(
        code="library-carry-varies",
        raised=("TypeError",),
        patterns=(_CARRY,),
        where=innermost(NO_LOOP),
        check="gains axes",
        says="LOOP body function carry input and output must have equal types, from a"
        " line without a loop",
        means="The loop is a library's. Its carry {name} starts the same on all devices"
        " ({type}) and comes out different ({type_out}; V: names the axes). Its start"
        " can't be changed from here.",
        instead="jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...,"
        " check_vma=False)  # take gradients outside of it",
        chapter=MODES,
    ),
    Rule(
        code="carry-varies",
        raised=("TypeError",),
        patterns=(_CARRY,),
        check="gains axes",
        says="LOOP body function carry input and output must have equal types, but"
        " NAME has TYPE and TYPE OUT: the manual axis types do not match",
        means="The carry {name} starts with {type} and comes out as {type_out} (V:"
        " names the axes along which it differs between devices). Inside shard_map that"
        " is part of its type.",
        instead="start = lax.pcast(start, {gained}, to='varying')  # before the"
        " {loop}; keep check_vma\n"
        "jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=..., check_vma=False)  #"
        " only if the loop is a library's",
        chapter=MODES,
    ),
    Rule(
        code="carry-stops-varying",
        raised=("TypeError",),
        patterns=(_CARRY,),
        says="LOOP body function carry input and output must have equal types, but"
        " NAME has TYPE and TYPE OUT: the manual axis types do not match",
        means="The carry {name} starts different on each device ({type}; V: names"
        " the axes) and comes out as {type_out}: by a collective, or by a foreign"
        " function that loses the axes.",
        instead="return lax.pcast(c, {lost}, to='varying')  # at the end of"
        " the {loop}'s body",
        chapter=MODES,
    ),
    Rule(
        code="branches-vary",
        raised=("TypeError",),
        patterns=(
            r"^(?P<op>cond|switch) branches must have equal output types .*? has type"
            r" (?P<type>\S+) but the corresponding output of .*? has type"
            r" (?P<type_out>\S+), so the (?:manual axis types|varying manual axes) do"
            r" not match",
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
        means="pcast states over which axes a value differs between devices, which"
        " exists only inside shard_map. Outside, an array is the global array.",
        instead="jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...)  # and"
        " pcast in f",
        chapter=MODES,
    ),
    Rule(
        code="key-varies-less",
        raised=("TypeError",),
        patterns=(
            r"^(?:jax\.random\.)?(?P<op>\w+) requires all arguments to have matching"
            r" type\. Got key type: (?P<type>\S+) vs arg type:"
            r" (?P<type_out>\S+\{V:\(?(?P<axes>[\w,]+)\)?\})",
        ),
        says="OP requires all arguments to have matching type. Got key type: TYPE vs"
        " arg"
        " type: TYPE OUT",
        means="{op} gets a key that is the same on all devices, and an argument that"
        " differs along {axes}. With one key every device would draw the same numbers.",
        instead="key = jax.random.fold_in(key, lax.axis_index({axes_code}))  # in"
        " shard_map: a key of its own for each device",
        chapter=MODES,
    ),
    # Kernels, and functions of libraries.
    Rule(
        code="kernel-output-varies",
        raised=("ValueError",),
        patterns=(
            r"'(?P<name>manual_axis_type|vma)' on 'jax\.ShapeDtypeStruct' must not be"
            r" 'None'",
        ),
        says="When check_vma=True on jax.shard_map, NAME on jax.ShapeDtypeStruct must"
        " not be None",
        means="A kernel (pallas_call) runs inside shard_map, and its out_shape does not"
        " say along which axes the result differs between devices.",
        instead="out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype,"
        " manual_axis_type=jax.typeof(x).manual_axis_type)\n"
        "jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=..., check_vma=False)  #"
        " with interpret=True",
        chapter=MODES,
    ),
    Rule(
        code="library-mixes-varying",
        raised=("NotImplementedError", "ValueError"),
        patterns=(
            r"^Primitive (?P<op>\w+) requires (?:varying manual axes|argument"
            r" replication"
            r" types) to match, but got",
            r"^No replication rule for (?P<op>\w+)\.",
        ),
        says="Primitive OP requires varying manual axes to match, but got […]",
        means="Inside shard_map, a kernel or a function of a library applies {op} to"
        " values that vary along different axes, or has no rule for it. Its code can't"
        " be changed from here.",
        instead="jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...,"
        " check_vma=False)  # check_rep=False in older JAX; gradients outside of it",
        chapter=MODES,
    ),
)
