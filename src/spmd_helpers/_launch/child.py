"""What runs in each process that `launch` starts, around the reader's program."""

import faulthandler
import json
import linecache
import os
import signal
import sys
import threading
import traceback
from typing import NoReturn, TypedDict

from .._runtime.require import require_jax

START_S = 120  # a loaded machine imports JAX slowly; the program's own time is apart
FILE = "<program>"  # how the program is called in tracebacks


class Order(TypedDict):
    """What the kernel sends to a process first."""

    text: str
    rank: int
    processes: int
    devices: int
    port: int
    path: list[str]
    sign: str


# What a process says: "is" is 'ready', 'done', 'raised' or 'port taken'.
Event = TypedDict("Event", {"is": str, "words": str})

# What a process says to the kernel follows this, on its error stream.
_sign: list[str] = []


def be_a_process(order: Order) -> NoReturn:
    _sign.append(order["sign"])
    noise, watched = 2, os.dup(0)
    own_output = os.dup(1)
    os.dup2(noise, 1)  # Gloo and others print to 1 by themselves
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.stdin = os.fdopen(0, encoding="utf8")
    sys.stdout = os.fdopen(own_output, "w", encoding="utf8", buffering=1)
    threading.Thread(target=_die_with_the_kernel, args=(watched,), daemon=True).start()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    code = _run(order)
    sys.stdout.flush()
    os._exit(code)


def _run(order: Order) -> int:
    jax = require_jax()
    jax.config.update("jax_num_cpu_devices", order["devices"])
    address, lines = f"127.0.0.1:{order['port']}", order["text"].split("\n")
    try:
        jax.distributed.initialize(
            address,
            order["processes"],
            order["rank"],
            coordinator_bind_address=address,
            initialization_timeout=START_S,
        )
        jax.devices()  # every process takes part in this
    except Exception as error:
        taken = "start RPC server" in str(error)
        _tell("port taken" if taken else "raised", _words(error))
        return 1
    _tell("ready")
    lines = [line + "\n" for line in lines]
    linecache.cache[FILE] = (len(order["text"]), None, lines, FILE)
    try:
        names = {"__name__": "__main__"}
        exec(compile(order["text"], FILE, "exec"), names)
        jax.effects_barrier()
    except SystemExit as stop:
        if stop.code:
            _tell("raised", f"stopped itself by sys.exit({stop.code!r})")
            return 1
    except BaseException as error:
        sys.stdout.flush()
        _tell("raised", _words(error))
        return 1
    sys.stdout.flush()
    _tell("done")
    jax.distributed.shutdown()  # waits for the others
    return 0


def _die_with_the_kernel(watched: int) -> NoReturn:
    while os.read(watched, 1024):
        pass
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _tell(what: str, words: str = "") -> None:
    event: Event = {"is": what, "words": words[:2000]}
    os.write(2, f"{_sign[0]}{json.dumps(event)}\n".encode())


def _words(error: BaseException) -> str:
    """The class, the lines of the program on the way, and the message."""
    steps = traceback.extract_tb(error.__traceback__)
    lines = [f"  at: {step.line}" for step in steps if step.filename == FILE]
    if isinstance(error, SyntaxError) and error.filename == FILE:
        lines = [f"  at: {(error.text or '').strip()}"]
    try:
        message = str(error).split("\n\n")[0][:600]
    except Exception:
        message = "(it can't be written out)"
    lines += [f"  {message}"] * bool(message)
    return "\n".join([f"raised {type(error).__name__}", *lines])
