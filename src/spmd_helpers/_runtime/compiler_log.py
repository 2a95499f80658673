"""What C++ writes on the error stream while something compiles, kept from the reader.

XLA logs to the file descriptor 2, past `sys.stderr`, so the descriptor is turned to a
file for that time. All that is not a line of such a log is written where it was meant
for as soon as the time is over, in its order.
"""

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator

# As absl writes it: "E1129 18:23:06.360802   32325 gpu_hlo_schedule.cc:1076] The …".
# Before it is initialized, the date has another form.
_LINE = re.compile(rb"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+:\d+\] ")
_EARLY = re.compile(rb"[IWEF]0000 00:00:\d+\.\d+ +\d+ \S+:\d+\] ")
_HEADING = b"WARNING: All log messages before absl::InitializeLog()"
_LOG = (_LINE, _EARLY, re.compile(re.escape(_HEADING)))
# One descriptor for the process: who compiles meanwhile in another thread waits.
_lock = threading.RLock()
_open: list[list[str]] = []  # the logs that are being kept, the outermost first


@contextlib.contextmanager
def kept_log() -> Iterator[list[str]]:
    """Keep the lines that C++ logs from the error stream, and give them.

    Example:
        >>> import os
        >>> with kept_log() as log:
        ...     _ = os.write(2, b"W1129 18:23:06.360802  7 partitioner.cc:6] Oh!\\n")
        >>> log
        ['W1129 18:23:06.360802  7 partitioner.cc:6] Oh!']

    A process that another thread starts meanwhile keeps the file as its error stream.

    Yields:
        A list, which has the lines when the block has ended, whether or not by an
        error. It stays empty where this process has no error stream.
    """
    log: list[str] = []
    with _lock:
        if _open:  # in this thread already
            yield _open[-1]
            return
        try:
            stream = os.dup(2)
        except OSError:  # closed
            yield log
            return
        _open.append(log)
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)
            try:
                yield log
            finally:
                os.dup2(stream, 2)
                os.close(stream)
                _open.pop()
                file.seek(0)
                for line in file:
                    if any(form.match(line) for form in _LOG):
                        log.append(line.decode("utf8", "replace").rstrip())
                    else:
                        with contextlib.suppress(OSError):
                            os.write(2, line)
