"""Files that are written at once or not at all."""

import contextlib
import os
import secrets
from pathlib import Path


def write_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Put these bytes into a file, so that nobody ever reads a part of them.

    Args:
        path: the file; a link stays, what it points to is written.
        data: all of it.
        mode: its rights; by default those that it has, or a new file's.

    Raises:
        OSError: when it can't be written; then it is as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():  # a pipe, a terminal
        target.write_bytes(data)
        return
    if mode is None and target.exists():
        mode = target.stat().st_mode & 0o7777
    new = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.new")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        if mode is not None:
            os.chmod(new, mode)
        os.replace(new, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
