"""Files that are written at once or not at all, and read without waiting."""

import contextlib
import os
import secrets
import stat
from pathlib import Path


def write_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Put these bytes into a file, so that nobody ever reads a part of them.

    Args:
        path: the file; what has its name now is replaced, whatever it is.
        data: all of it.
        mode: its rights; by default those that it has, or a new file's.

    Raises:
        OSError: when it can't be written; then it is as it was.
    """
    if mode is None and path.is_file() and not path.is_symlink():
        mode = path.stat().st_mode & 0o7777
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.new")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        if mode is not None:
            os.chmod(new, mode)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def read_file(path: Path, most: int | None = None) -> bytes | None:
    """The bytes of a plain file, or None: it is none, or has more than `most`.

    Raises:
        OSError: when it can't be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
    with open(fd, "rb") as file:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            return None
        if most is not None and state.st_size > most:
            return None
        return file.read()
