"""`explain`: JAX's own errors, raised here, and what it says of them."""

import ast
import inspect
import json
import re
import socket
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spmd_helpers as spmd
from spmd_helpers._explain import explain as module
from spmd_helpers._explain.explain import Explanation, explain
from spmd_helpers._explain.rules.rule import BOTH
from spmd_helpers._explain.rules.table import ANY_MESSAGE, RULES

from .cases import CASES, NOT_ALONE, Case, errors, saved
from .cures import CURES, ELSEWHERE, OF_PROCESSES
from .unrelated import UNRELATED, strangers

# Messages of machines that are not here. Of TPUs: the compiler's for v5e:2x2, on both
# versions of JAX (test_memory_of_a_chip raises them where libtpu is installed), an
# older compiler's (https://github.com/LargeWorldModel/LWM/issues/60) and running
# chips' (https://github.com/pytorch/xla/issues/8020 and /3470). Of GPUs:
# https://github.com/jax-ml/jax/issues/22755,
# https://github.com/google-deepmind/jax_privacy/issues/10 and
# https://github.com/tensorflow/tensorflow/issues/14231. Of XLA's log:
# https://github.com/EnzymeAD/Enzyme-JAX/pull/1307. Of clusters:
# https://github.com/ayaka14732/llama-2-jax/issues/20 and
# https://github.com/AI-Hypercomputer/gpu-recipes/issues/2. Of an older Orbax:
# https://github.com/google/orbax/issues/648. Those of processes that end are raised by
# the tests below, too.
RECORDED = {
    "ValueError: Invalid host data, each dimension should match either global or"
    " process shape. In dimension 0, the process data has 8 elements. Process addresses"
    " 16 elements and global_shape=(32, 2).": "process-local-data-shape",
    "RuntimeError: distributed.initialize should only be called"
    " once.": "initialized-twice",
    "ValueError: coordinator_address should be defined.": "cluster-is-not-described",
    "ValueError: Number of processes must be defined.": "cluster-is-not-described",
    "ValueError: process_id and num_processes must be nonnegative, with process_id <"
    " num_processes. Got process_id=2, num_processes=2.": "cluster-is-not-described",
    "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out."
    " Barrier_id: PjRT_Client_Connect. Timed out task names:": "a-process-did-not-come",
    "Original error: DEADLINE_EXCEEDED: Barrier timed out. Id:"
    " [Init]Wait_for_all_tasks_to_register::0.": "a-process-did-not-come",
    "F1129 18:30:56 client.h:86] Terminating process because the JAX distributed"
    " service detected fatal errors. absl::Status: DEADLINE_EXCEEDED: Deadline"
    " Exceeded\nRPC: /xla.coordination.CoordinationService/"
    "RegisterTask": "a-process-did-not-come",
    "E1129 18:31:19 add_port.cc:83] Failed to add port to server: No address added out"
    " of total 1 resolved for '[::]:45883'": "port-is-taken",
    "W1129 18:21:11 spmd_partitioner.cc:666] [SPMD] Involuntary full rematerialization."
    " The compiler cannot go from sharding {mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]} to"
    " {mesh['x'=4,'y'=2], [{}, {'x', 'y'}, {}]} efficiently for HLO"
    " operation": "full-rematerialization",
    "W1129 18:21:11 spmd_partitioner.cc:666] [SPMD] Involuntary full rematerialization."
    " The compiler cannot go from sharding {mesh['d'=8], [{'d'}, {}]} to {maximal"
    " device=0} efficiently for HLO operation": "one-device-rematerialization",
    "ValueError: Topology mismatch detected. The checkpoint was saved with a different"
    " topology than the current one.": "checkpoint-of-other-devices",
    "ValueError: sharding passed to deserialization should be specified, concrete and"
    " an instance of `jax.sharding.Sharding`. Got None": "checkpoint-of-other-devices",
    "ValueError: Checkpoint path should be absolute. Got"
    " rel/a.orbax-checkpoint-tmp": "checkpoint-path-is-relative",
    "File ~/lib/python3.10/site-packages/orbax/checkpoint/type_handlers.py:136, in"
    " _deserialize_sharding_from_json_string(sharding_string)\n    134   sharding ="
    " NamedSharding(\n    135       jax.sharding.Mesh(\n--> 136           np.array("
    "jax.devices()).reshape(shape), axis_names=axis_names\n    137       ),\n\n"
    "ValueError: cannot reshape array of size 2 into shape"
    " (1,64)": "checkpoint-of-other-devices-in-old-orbax",
    "RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was"
    " not possible. There are 6.78G free, 0B reserved, and 3.33G"
    " reservable.": "no-room-for-the-program",
    "Can't reduce memory use below 10.64GiB (11429599125 bytes) by rematerialization;"
    " only reduced to 56.60GiB (60775368484 bytes)": "recompute-is-not-enough",
    "failed to allocate 2.44G (2617515264 bytes) from device:"
    " CUDA_ERROR_OUT_OF_MEMORY": "out-of-memory",
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total"
    " memory required for HLO temporaries (32.00G) exceeds available HBM (15.75G). HLO"
    " module: jit__lambda.": "too-large-for-the-chip",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of"
    " memory in memory space hbm. Used 21.95G of 15.48G hbm.": "too-large-for-the-chip",
    "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate"
    " 196.00M. That was not possible. There are 134.44M free.": "out-of-memory",
    "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM, the"
    " total memory required for HLO temporaries (32.00G) exceeds available HBM"
    " (15.75G).": "too-large-for-the-chip",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while"
    " trying to allocate 3743729664 bytes.": "out-of-memory",
    "RESOURCE_EXHAUSTED: Failed to allocate request for 176.00MiB (184549376B) on"
    " device ordinal 0": "out-of-memory",
}


# Each rule on a real error.


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_case(case: Case):
    error = errors()[case.name]
    if case.code is None:
        assert error is None, "this version of JAX raises here after all"
        return
    assert error is not None, "nothing was raised"
    said = explain(error)
    assert (said.code, said.known) == (case.code, True)
    for words in (said.means, said.instead):
        assert "…" not in words
        assert not re.search(r"\{\w+\}|<class|_internal_pmap|frozenset", words)


def test_every_rule_is_seen():
    known_codes = {case.code for case in CASES.values()}
    known_codes |= {*RECORDED.values(), *OF_PROCESSES}
    here = {rule.code for rule in RULES if rule.versions == BOTH}
    unseen = " and ".join(f'`@case("{code}")`' for code in sorted(here - known_codes))
    assert not unseen, (
        f"add {unseen} over a program that raises it to tests/explain/cases.py; a "
        "message of a machine that is not here goes to RECORDED in this file"
    )
    unknown = known_codes - {None} - {rule.code for rule in RULES}
    assert not unknown, f"no rule in src/spmd_helpers/_explain/rules/ has {unknown}"


@pytest.mark.parametrize(("text", "code"), RECORDED.items(), ids=RECORDED.values())
def test_recorded(text, code):
    assert explain(text).code == code


# Of the book's claims, those that end in an error.
CLAIMS = {1, 2, 4, 5, 6, 9, 14, 16, 17, 18, 19, 21, 22, 24, 29}


def test_every_claim_that_ends_in_an_error_is_covered():
    covered = {claim for case in CASES.values() for claim in case.claims}
    assert covered == CLAIMS


@pytest.mark.parametrize(
    ("name", "means", "instead"),
    [
        (
            "ten_columns_in_over_four",
            "P(None, 'data') splits dimension 1 of the shape (3, 10, 2) into 4 equal "
            "shards, and 10 is not divisible by 4.",
            "x = jnp.pad(x, ((0, 0), (0, 2), (0, 0)))  # to 12; mask what is "
            "padding\nsharding = NamedSharding(mesh, P())  # or replicate this one",
        ),
        (
            "twelve_rows_into_shard_map_over_two_axes",
            "P(('data', 'model')) splits dimension 0 of the shape (12, 4) into 8 "
            "equal shards, and 12 is not divisible by 8.",
            "x = jnp.pad(x, ((0, 4), (0, 0)))  # to 16; mask what is "
            "padding\nsharding = NamedSharding(mesh, P())  # or replicate this one",
        ),
        (
            "ten_rows_resharded_over_eight",
            "P('x') splits dimension 0 of the shape (10,) into 8 equal shards, and 10 "
            "is not divisible by 8.",
            "x = jnp.pad(x, ((0, 6),))  # to 16; mask what is padding\nsharding = "
            "NamedSharding(mesh, P())  # or replicate this one",
        ),
        (
            "a_misspelled_axis",
            "P('data', 'modle') names the mesh axis 'modle', and the mesh has 'data'"
            " and 'model'. Did you mean 'model'?",
            "NamedSharding(mesh, P('data'))  # a name from mesh.axis_names",
        ),
        (
            "one_spec_for_images_and_labels",
            "P('data', None) has more entries than an array of rank 1 has dimensions."
            " A spec for a whole tree must fit every leaf, biases and labels too.",
            "NamedSharding(mesh, P('data'))  # at most 1 entry\n"
            "{'w': P(None, 'model'), 'b': P('model')}  # in a tree, one spec a leaf",
        ),
        (
            "an_array_on_one_device_and_one_on_eight",
            "Two arrays are on different devices: argument x on device 0, argument y "
            "on devices 0–7. An array that was placed (committed) stays where it is: "
            "JAX never moves it implicitly.",
            "x = jax.device_put(x, NamedSharding(mesh, P()))  # onto the same mesh as"
            " the others",
        ),
        (
            "the_same_devices_in_another_order",
            "Two arrays are on the same devices in another order, [0, 1, 2, 3, 4, 5, "
            "6, 7] and [7, 6, 5, 4, 3, 2, 1, 0]. Each mesh fixes an order, and a "
            "program has one.",
            "mesh = jax.make_mesh(sizes, names)  # once, for every array",
        ),
        (
            "a_scan_over_two_axes",
            "The carry c starts with float32[] and comes out as"
            " float32[]{V:(data,model)} (V: names the axes along which it differs"
            " between devices). Inside shard_map that is part of its type.",
            "start = lax.pcast(start, ('data', 'model'), to='varying')  # before the"
            " scan; keep check_vma\njax.shard_map(f, mesh=mesh, in_specs=...,"
            " out_specs=..., check_vma=False)  # only if the loop is a library's",
        ),
        (
            "joined_arrays_cut_otherwise",
            "On Explicit axes JAX reshards nothing implicitly, and the inputs' "
            "shardings don't fit together: P('data', None) and P('model', None).",
            "y = jax.reshard(y, jax.typeof(x).sharding.spec)  # under"
            " jax.set_mesh(mesh)",
        ),
        (
            "in_shardings_for_an_array_on_one_device",
            "in_shardings has P('x'), and the argument float32[8] was placed with "
            "another sharding: on device 0. jit does not reshard a committed "
            "argument. Under jax.set_mesh every new array is placed, replicated on "
            "every device.",
            "x = jax.device_put(x, NamedSharding(mesh, P('x')))  # before the call;"
            " but delete a pmap that a port left over\n"
            "step = jax.jit(step)  # and no in_shardings: jit takes the argument's own",
        ),
        (
            "an_auto_and_an_explicit_mesh",
            "The arrays are on two meshes, data=4 × model=2 (Auto) and data=4 × "
            "model=2 (Explicit). Names, sizes and the axes' types must agree; the "
            "same devices are not enough.",
            "mesh = jax.make_mesh((4, 2), ('data', 'model'),"
            " axis_types=(AxisType.Auto,) * 2)  # once, for all\n"
            "y = jax.device_put(y, NamedSharding(mesh, P('data')))",
        ),
        (
            "a_sharding_for_in_specs",
            "In in_specs stands P('x'), which is no PartitionSpec. Names become one"
            " inside P(...); shard_map takes the spec without its mesh.",
            "P('data')  # in place of P('x')",
        ),
        (
            "an_array_larger_than_memory",
            "The program tried to allocate 64 TiB in one piece on one device, which "
            "has not that much left. An array made by jnp.zeros or init is first "
            "placed at full size on one device.",
            "params = jax.jit(init, out_shardings=shardings)(key)  # made "
            "sharded\nspmd.memory(params)  # bytes per device",
        ),
    ],
)
def test_words(name, means, instead):
    said = explain(errors()[name])
    assert (said.means, said.instead) == (means, instead)


# What is advised runs.

PROGRAMS = dict.fromkeys(program for programs in CURES.values() for program in programs)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_cure(program, tmp_path):
    needs_a_folder = inspect.signature(program).parameters
    program(tmp_path) if needs_a_folder else program()


def test_every_rule_has_its_cure():
    codes = {rule.code for rule in RULES}
    cured = CURES.keys() | ELSEWHERE.keys()
    missing = " and ".join(f'`@cure("{code}")`' for code in sorted(codes - cured))
    assert not missing, (
        f"add {missing} over a program that does what the rule advises to "
        "tests/explain/cures.py; ELSEWHERE there if it can't run here"
    )
    assert cured == codes, f"no rule has the codes {cured - codes}"
    assert not CURES.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("test", sorted(set(ELSEWHERE.values())))
def test_a_cure_elsewhere_is_there(test):
    file, _, name = test.partition("::")
    path = Path(__file__).parents[2] / file
    assert path.exists(), f"ELSEWHERE in tests/explain/cures.py names {file}: not there"
    functions = {
        n.name
        for n in ast.walk(ast.parse(path.read_text("utf8")))
        if isinstance(n, ast.FunctionDef)
    }
    assert name in functions, f"{file} has no test {name}, which ELSEWHERE names"


# Whatever an error comes as: text, cause, group.


def python_text(error) -> str:
    return "".join(traceback.format_exception(error))


def ipython_text(error) -> str:
    from IPython.core.ultratb import VerboseTB

    parts = VerboseTB(theme_name="linux", include_vars=False)
    lines = parts.structured_traceback(type(error), error, error.__traceback__)
    return parts.stb2text(lines)


def test_a_pasted_traceback_says_what_the_error_says():
    differ = []
    for name, case in CASES.items():
        if case.code is not None:
            said = explain(python_text(errors()[name]))
            if replace(said, about="") != replace(explain(errors()[name]), about=""):
                differ.append((name, said.code))
    assert differ == []


def in_a_notebook() -> dict[str, str]:
    """Errors that are known by their place, a case for each code."""
    codes = (
        *("devices-do-not-fill-the-shape", "wrong-axis-in-shard-map", "pmap-rows"),
        *("ppermute-numbers", "flax-shard-rows", "not-divisible"),
    )
    named = {case.code: case.name for case in reversed(CASES.values())}
    return {code: named[code] for code in codes}


def test_a_traceback_pasted_from_a_notebook():
    for code, name in in_a_notebook().items():
        assert explain(ipython_text(errors()[name])).code == code


def test_a_message_alone():
    for name, case in CASES.items():
        if case.code is not None:
            said = explain(str(errors()[name]))
            expected = NOT_ALONE.get(case.code, case.code)
            assert (name, said.code) == (name, expected)
    quiet = {r.code for r in RULES if r.patterns == ANY_MESSAGE}
    assert {r.code for r in RULES if r.where and not r.alone} | quiet == set(
        NOT_ALONE
    ), (
        "a rule with 'where' and without 'alone' stands in NOT_ALONE of "
        "tests/explain/cases.py: its message needs the traceback"
    )


SPEC_ERROR = ValueError("Resource axis: y of P('y',) is not found in mesh: ('x',).")


def chained(cause=None, context=None, suppress=False):
    error = RuntimeError("training failed")
    error.__cause__, error.__context__ = cause, context
    error.__suppress_context__ = suppress
    return error


@pytest.mark.parametrize(
    "error",
    [
        chained(cause=SPEC_ERROR),
        chained(context=SPEC_ERROR),
        chained(cause=chained(context=SPEC_ERROR)),
        ExceptionGroup("two failed", [KeyError("w"), SPEC_ERROR]),
        chained(cause=ExceptionGroup("all failed", [SPEC_ERROR])),
    ],
    ids=["cause", "context", "deeper", "group", "group as cause"],
)
def test_the_error_inside(error):
    said = explain(error)
    assert (said.code, said.about) == ("unknown-axis", "ValueError")
    assert explain(python_text(error)).code == "unknown-axis"


def test_the_outer_error_comes_first():
    error = NameError("unbound axis name: x")
    error.__cause__ = SPEC_ERROR
    assert explain(error).code == "unbound-axis"
    assert explain(python_text(error)).code == "unbound-axis"


def test_a_context_that_was_cut_off_stays_so():
    assert not explain(chained(context=SPEC_ERROR, suppress=True)).known


def test_a_circle_ends():
    first, second = KeyError("a"), KeyError("b")
    first.__cause__, second.__cause__ = second, first
    assert not explain(first).known


def test_the_last_error(monkeypatch):
    for name in ("last_exc", "last_value"):
        monkeypatch.delattr(sys, name, raising=False)
    assert explain() == Explanation(
        "", "No error has been raised here yet.", "", "", known=False
    )
    monkeypatch.setattr(sys, "last_value", SPEC_ERROR, raising=False)
    assert explain().code == "unknown-axis"
    try:
        raise NameError("unbound axis name: x")
    except NameError:
        assert explain().code == "unbound-axis"


@pytest.mark.parametrize("error", [spmd.CheckFailed, spmd.NotDivisible, spmd.NoJax])
def test_own_errors_keep_their_words(error):
    words = "Exercise 2.1, not yet: 5 is not 6"
    expected = Explanation(
        error.__name__, words, "", "", known=True, about=error.__name__
    )
    assert explain(error(words)) == expected
    assert explain(f"spmd_helpers._errors.{error.__name__}: {words}") == expected
    assert str(expected) == words
    assert expected._repr_html_() == f'<p class="spmd-explain">{words}</p>'


def test_an_own_error_that_jax_caused_keeps_its_words():
    error = spmd.MeshMismatch("the mesh is another one")
    error.__cause__ = SPEC_ERROR
    assert explain(error).means == "the mesh is another one"


# Errors about something else.


@pytest.mark.parametrize("name", UNRELATED)
def test_unrelated_errors_stay_unknown(name):
    error = strangers()[name]
    said = explain(error)
    assert (said.code, said.known) == ("", False)
    assert said.means.startswith(
        f"Not known here, so nothing is guessed: {type(error).__name__}"
    )
    assert (said.instead, said.chapter) == ("", "")
    assert explain(python_text(error)).known is False


# Never raises.


class Unreadable(Exception):
    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        (42, "explain takes an exception or a text; this is of type int."),
        (b"x", "explain takes an exception or a text; this is of type bytes."),
        (
            ValueError,
            "explain takes an exception or a text; this is a type, ValueError.",
        ),
        ("", "Not known here, so nothing is guessed: text"),
        (Unreadable(), "Not known here, so nothing is guessed: Unreadable"),
        (KeyError("w"), "Not known here, so nothing is guessed: KeyError: 'w'"),
    ],
)
def test_what_is_no_known_error(given_, words):
    said = explain(given_)
    assert (said.means, said.known) == (words, False)
    assert str(said) == words


@pytest.mark.parametrize(
    ("rules", "kind"), [(None, "TypeError"), ([1], "AttributeError")]
)
def test_a_broken_rule_is_no_error(monkeypatch, rules, kind):
    monkeypatch.setattr(module, "RULES", rules)
    words = f"This error can't be read ({kind})."
    assert explain(SPEC_ERROR) == Explanation("", words, "", "", known=False)


MESSAGES = [rule.says for rule in RULES] + list(RECORDED)
KINDS = sorted({kind for rule in RULES for kind in rule.raised})


@st.composite
def texts(draw):
    """Texts near to what the patterns look for, and others."""
    parts = st.one_of(
        st.text(max_size=40),
        st.sampled_from(MESSAGES),
        st.sampled_from(
            ["Traceback (most recent call last):\n", '  File "x", line 1', "\n"]
        ),
        st.sampled_from(KINDS).map(lambda kind: f"\n{kind}: "),
    )
    return "".join(draw(st.lists(parts, max_size=6)))


@st.composite
def exceptions(draw):
    kinds = [ValueError, TypeError, AssertionError, NameError, IndexError, KeyError]
    error = draw(st.sampled_from(kinds))(draw(texts()))
    if draw(st.booleans()):
        error.__cause__ = draw(st.sampled_from(kinds))(draw(texts()))
    return draw(st.sampled_from([error, ExceptionGroup("g", [error])]))


@settings(max_examples=150, deadline=None)
@given(st.one_of(texts(), exceptions()))
def test_explain_always_answers(given_):
    said = explain(given_)
    assert "can't be read" not in said.means
    assert said.known == bool(said.code)
    assert isinstance(str(said), str)
    assert said.means


# Errors of several processes, and of a chip that is not here.

TWO_PROCESSES = """
import json, os, sys
from pathlib import Path
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from spmd_helpers._explain.explain import explain
me = int(sys.argv[1])
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize("127.0.0.1:" + sys.argv[2], 2, me)
assert jax.distributed.is_initialized()
mesh = Mesh(np.array(jax.devices()), ("x",))
cut, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
x = jax.make_array_from_process_local_data(cut, np.arange(4.0) + 4 * me)
wrong = {
    "not-on-this-process": lambda: np.asarray(x),
    "closed-over-global-array": lambda: jax.jit(lambda v: v + x)(1.0),
    "processes-disagree": lambda: jax.device_put(np.arange(4.0) + me, whole),
    "device-put-of-a-global-array": lambda: jax.device_put(x, jax.local_devices()[0]),
    "allgather-needs-tiled": lambda: multihost_utils.process_allgather(x),
    "process-local-data-shape": lambda: jax.make_array_from_process_local_data(
        cut, np.arange(4.0), (64,)
    ),
    "pmap-rows": lambda: jax.pmap(lambda v: v)(np.ones((jax.device_count(), 1))),
    "distributed-too-late": lambda: jax.distributed.initialize(),
}
said = {}
for code, program in wrong.items():
    try:
        program()
    except Exception as error:
        said[code] = explain(error).code
assert [s.data.shape for s in x.addressable_shards] == [(2,), (2,)]
assert multihost_utils.process_allgather(x, tiled=True).tolist() == list(range(8))
assert jax.jit(lambda v, x: v + x)(1.0, x).shape == (8,)
jax.make_array_from_process_local_data(cut, np.arange(4.0) + me)
rows = np.ones((jax.device_count(), 1))
rows = rows.reshape(jax.local_device_count(), -1, *rows.shape[1:])
assert jax.pmap(lambda v: v)(rows).shape == (2, 2, 1)
assert jax.device_put(x, whole).is_fully_replicated
Path(sys.argv[3]).write_text(json.dumps(said))  # gloo writes on stdout
jax.distributed.shutdown()
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_errors_of_two_processes(tmp_path):
    """Each is explained, in both processes, and what is advised runs."""
    port = str(free_port())
    files = [tmp_path / f"{i}.json" for i in range(2)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_PROCESSES, str(i), port, str(files[i])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    try:
        done = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    for file, (_, err) in zip(files, done, strict=True):
        assert file.exists(), err
        codes = {*OF_PROCESSES, "process-local-data-shape", "pmap-rows"}
        codes |= {"distributed-too-late"}
        assert json.loads(file.read_text()) == {code: code for code in codes}


# A cluster that is described badly; each line runs in a process of its own.
STARTS = {
    "cluster-is-not-described": [
        "jax.distributed.initialize()",
        "jax.distributed.initialize('127.0.0.1:{port}')",
        "jax.distributed.initialize('127.0.0.1:{port}', 2)",
        "jax.distributed.initialize('127.0.0.1:{port}', 2, 2)",
    ],
    "initialized-twice": [
        "for _ in range(2): jax.distributed.initialize('127.0.0.1:{port}', 1, 0)"
    ],
    "a-process-did-not-come": [
        "jax.distributed.initialize('127.0.0.1:{port}', 2, 0,"
        " initialization_timeout=2)",
    ],
    "port-is-taken": [
        "import socket; s = socket.socket(); s.bind(('0.0.0.0', {port})); s.listen();"
        " jax.distributed.initialize('127.0.0.1:{port}', 1, 0)"
    ],
}


def started(line: str) -> tuple[int, str]:
    """The exit code and what a process writes that runs one of these lines."""
    text = "import jax; jax.config.update('jax_platforms', 'cpu')\n"
    text += line.format(port=free_port())
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stderr


@pytest.mark.long("processes of clusters that don't start")
@pytest.mark.parametrize("code", STARTS)
def test_a_cluster_that_does_not_start(code):
    for line in STARTS[code]:
        status, err = started(line)
        assert status != 0
        assert explain(err).code == code, err


def test_a_log_explains_what_the_error_beside_it_does_not():
    log = (
        "E1129 23:12:23.803287    4334 add_port.cc:83] Failed to add port to server: No"
        " address added out of total 1 resolved for '[::]:38127' (Address in use)\n"
    )
    raised = 'Traceback (most recent call last):\n  File "a.py", line 2, in <module>\n'
    unknown = "jax.errors.JaxRuntimeError: UNKNOWN: Failed to start RPC server\n"
    assert explain(log + raised + unknown).code == "port-is-taken"
    assert not explain(raised + unknown).known
    known = explain(log + raised + "NameError: unbound axis name: x\n")
    assert known.code == "unbound-axis"  # what was raised counts first


def compiled_log(capfd, f, *args) -> str:
    import jax

    capfd.readouterr()
    jax.block_until_ready(jax.jit(f)(*args))
    jax.effects_barrier()
    return capfd.readouterr().err


def test_lines_of_the_log(capfd):
    """XLA's line is known; with what is advised it does not come."""
    import jax
    from jax.experimental import io_callback
    from jax.sharding import PartitionSpec as P

    from .cases import BOX, blocks, constrain, on, zeros

    start, between = on(BOX, "model", None, "data"), on(BOX, "model", "data", None)
    end = on(BOX, None, ("data", "model"), None)
    x = zeros(16, 16, 16, at=BOX, spec=start.spec)
    line = compiled_log(capfd, lambda a: constrain(a + 1, end), x)
    assert explain(line).code == "full-rematerialization"
    step = lambda a: constrain(constrain(a + 1, between), end)  # noqa: E731
    assert "rematerialization" not in compiled_log(capfd, step, x)

    shapes = []

    def called(v):
        io_callback(lambda a: shapes.append(a.shape), None, v)
        return v * 2

    x = jax.device_put(jax.numpy.ones((64, 8)), on(BOX, "data"))
    line = compiled_log(capfd, called, x)
    assert explain(line).code == "one-device-rematerialization"
    assert shapes == [(64, 8)]
    in_parts = blocks(called, P("data"), P("data"), BOX)
    assert "rematerialization" not in compiled_log(capfd, in_parts, x)
    assert shapes[1:] == [(16, 8)] * 8


def test_what_is_held_and_needed():
    """What the rules of memory advise to look at is there."""
    from .cases import LINE, zeros

    params = {"w": zeros(64, 64, at=LINE, spec=("x",)), "b": zeros(64, at=LINE)}
    assert "w" in str(spmd.memory(params))
    report = spmd.xray(lambda p: (p["w"] @ p["w"]).sum() + p["b"].sum(), params)
    assert report.peak_memory > 64 * 64 * 4
    assert "b" in str(report.input_shardings)
    needed = spmd.training_memory(
        spmd.MODELS["gpt2-small"], mesh={"data": 8}, batch=8, seq=1024
    )
    assert needed.total_bytes > 0


OTHER_DEVICES = """
import os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
import warnings; warnings.simplefilter("ignore")
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec as P
from spmd_helpers import explain
path, checkpointer = sys.argv[1], ocp.StandardCheckpointer()
for one in (checkpointer, ocp.PyTreeCheckpointer()):
    try:
        one.restore(path)
    except ValueError as error:
        print(explain(error).code)
mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,))
here = NamedSharding(mesh, P("data"))
target = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=here),
          "n": np.zeros(3, int)}
state = checkpointer.restore(path, target)
assert state["w"].sharding == here
print(state["n"].tolist())
"""


@pytest.mark.long("a process with other devices")
def test_a_checkpoint_of_other_devices():
    command = [sys.executable, "-c", OTHER_DEVICES, str(saved())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    code = "checkpoint-of-other-devices"
    assert done.stdout.split("\n")[:3] == [code, code, "[0, 1, 2]"], done.stderr


CHIP = """
import os
os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1")
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from spmd_helpers._explain.explain import explain
devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
whole = NamedSharding(Mesh(np.array(devices), ("x",)), P())
x = jax.ShapeDtypeStruct((1 << 16, 1 << 16), jnp.float32, sharding=whole)
try:
    jax.jit(lambda v: v + 1).lower(x).compile()
except Exception as error:
    said = explain(error)
    print(said.code, "|", said.means)
"""


@pytest.mark.compiler("tpu")
def test_memory_of_a_chip():
    done = subprocess.run(
        [sys.executable, "-c", CHIP], capture_output=True, text=True, timeout=240
    )
    code, _, means = done.stdout.strip().partition(" | ")
    assert code == "too-large-for-the-chip", done.stderr
    assert re.search(r"needs [\d.]+G on each device, and a device has 15\.75G", means)


def test_no_jax_is_needed():
    text = (
        "import sys; from spmd_helpers._explain.explain import explain\n"
        "assert explain('NameError: unbound axis name: x').known\n"
        "assert not {'jax', 'numpy', 'IPython'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_does_not_fit_says_so_itself():
    error = spmd.DoesNotFit(20 * 2**30, 16 * 2**30, chip="v5e", largest=(), text="")
    explained = spmd.explain(error)
    assert explained.known
    assert explained.means == str(error)
