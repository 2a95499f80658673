"""Handwritten digits: 10,000 in the package, all 70,000 by a verified download."""

import functools
import http.client
import ipaddress
import os
import pathlib
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, NamedTuple

from .._errors import DownloadFailed
from .._runtime.packages import is_installed
from .._runtime.require import require

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_TRAIN = 8_000  # of the 10,000 embedded digits
_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
# The four files of the MNIST database: bytes and SHA-256 of each as it is served.
_FILES = {
    "train-images-idx3-ubyte.gz": (
        9_912_422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train-labels-idx1-ubyte.gz": (
        28_881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "t10k-images-idx3-ubyte.gz": (
        1_648_877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        4_542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}
_SILENCE_SECONDS = 30  # a server that says nothing for so long is given up
_FILE_SECONDS = 600  # and so is one that has not sent a whole file by then


class MNIST(NamedTuple):
    """Digits to train and to test on: images float32 [n, 28, 28], labels int32 [n]."""

    train_images: "npt.NDArray[np.float32]"
    train_labels: "npt.NDArray[np.int32]"
    test_images: "npt.NDArray[np.float32]"
    test_labels: "npt.NDArray[np.int32]"

    def __repr__(self) -> str:
        fields = (f"{k}={v.dtype}{list(v.shape)}" for k, v in self._asdict().items())
        return f"MNIST({', '.join(fields)})"


def load_mnist(
    full: bool = False,
    *,
    cache: str | os.PathLike[str] | None = None,
    base_url: str | None = None,
) -> MNIST:
    """Load the MNIST digits: 10,000 from this package, or all 70,000 by download.

    Example:
        >>> load_mnist().train_images.shape  # of 10,000 digits 8,000 are to train on
        (8000, 28, 28)
        >>> train_images, train_labels, test_images, test_labels = load_mnist()
        >>> test_labels.shape, str(test_labels.dtype), float(test_images.max())
        ((2000,), 'int32', 1.0)

    Args:
        full: download the database's four files (11.6 MB over https), 60,000 + 10,000
            digits, and keep them. Their SHA-256 is checked each time they are read.
        cache: with full=True, the folder that keeps them; by default
            `spmd_helpers/mnist` in the user's cache folder.
        base_url: with full=True, an https address to fetch them from, in place of the
            two public mirrors.

    Returns:
        MNIST(train_images, train_labels, test_images, test_labels), NumPy arrays:
        images float32 in [0, 1] of shape [n, 28, 28], labels int32 of shape [n].
        The same digits in the same order every time.

    Raises:
        ValueError: an argument of the wrong kind, or an address that is not https.
        DownloadFailed: a file could not be fetched whole, verified and stored.
            Nothing of that file is kept.
        MissingLibrary: pooch is not installed, which keeps and verifies the files.

    Source of the digits: the README beside the embedded file. Chapter 1 trains on it.
    """
    if full not in (True, False):
        raise ValueError(
            f"full={full!r} must be True (all 70,000 digits, by download) or False"
            " (the embedded 10,000): write load_mnist(full=True) or load_mnist()."
        )
    if full:
        if not is_installed("pooch"):
            require("pooch")
        mirrors = _MIRRORS if base_url is None else (_address(base_url),)
        return _full(_cache_folder(cache), mirrors)
    for name, value in (("cache", cache), ("base_url", base_url)):
        if value is not None:
            raise ValueError(
                f"{name}={value!r} is for the download, and load_mnist() downloads"
                f" nothing: write load_mnist(full=True, {name}={value!r})."
            )
    return _embedded()


def _embedded() -> MNIST:
    import numpy as np

    file = pathlib.Path(__file__).with_name("mnist-10k.npz")
    with file.open("rb") as stream, np.load(stream) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    return _mnist(images[:_TRAIN], labels[:_TRAIN], images[_TRAIN:], labels[_TRAIN:])


def _mnist(
    train_images: "npt.NDArray[np.uint8]",
    train_labels: "npt.NDArray[np.uint8]",
    test_images: "npt.NDArray[np.uint8]",
    test_labels: "npt.NDArray[np.uint8]",
) -> MNIST:
    """Gray levels 0..255 to float32 in [0, 1]; labels to int32."""
    import numpy as np

    scale = np.float32(255)
    return MNIST(
        train_images.astype(np.float32) / scale,
        train_labels.astype(np.int32),
        test_images.astype(np.float32) / scale,
        test_labels.astype(np.int32),
    )


def _full(folder: pathlib.Path, mirrors: Iterable[str]) -> MNIST:
    files = [_file(name, folder, mirrors) for name in _FILES]
    try:
        arrays = [_read_idx(data) for data in files]
    except ValueError as error:
        raise DownloadFailed(f"load_mnist(full=True): {error}") from None
    return _mnist(*arrays)


def _file(name: str, folder: pathlib.Path, mirrors: Iterable[str]) -> bytes:
    """The bytes of one verified file, from the cache or else from a mirror."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    size, sha256 = _FILES[name]
    path, tried = folder / name, []
    for mirror in mirrors:
        url = mirror + name
        download = functools.partial(_download, size=size)
        try:
            pooch.retrieve(url, sha256, name, folder, downloader=download)
            return path.read_bytes()
        except ValueError as error:
            tried.append(f"{url}: {error}")
        except OSError as error:
            tried.append(f"{path}: {_words(error)}")
            break  # another mirror would not help
    raise DownloadFailed(_failure(name, folder, tried)) from None


def _failure(name: str, folder: pathlib.Path, tried: Iterable[str]) -> str:
    tries = "".join(f"\n  {line}" for line in tried)
    return (
        f"load_mnist(full=True) could not get {name}. Tried, in this order:{tries}\n"
        "Nothing of that file was kept. load_mnist() still gives 10,000 real digits"
        " with no download.\n"
        "To retry, run load_mnist(full=True) again (cache= takes another folder,"
        " base_url= another address).\n"
        f"Or put {', '.join(_FILES)} into {folder} yourself: they are checked and used."
    )


def _words(error: Exception) -> str:
    """An error in one line: 'HTTP 404 Not Found', 'FileExistsError: …'."""
    reason: BaseException | str = error
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}".strip()
    if isinstance(error, urllib.error.URLError):
        reason = error.reason  # another error, or only its words
        error = reason if isinstance(reason, Exception) else error
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    text = str(reason).strip() or "no message"
    return f"{type(error).__name__}: {text.splitlines()[0]}"


def _download(url: str, file: str, _: object, *, size: int) -> None:
    """What pooch calls for a file that it lacks, or has with another hash."""
    name, host = url.rpartition("/")[2], urllib.parse.urlsplit(url).netloc
    print(f"downloading {name} ({size:,} bytes) from {host}", flush=True)
    try:
        data = _fetch(url, size)
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(_words(error)) from None
    if len(data) < size:
        raise ValueError(f"cut short, {len(data):,} of {size:,} bytes")
    if len(data) > size:
        raise ValueError(f"more than the {size:,} bytes of the file")
    pathlib.Path(file).write_bytes(data)


def _fetch(url: str, size: int) -> bytes:
    """Read an address, at most one byte more than the file has."""
    opener = urllib.request.build_opener(_SafeRedirects)
    request = urllib.request.Request(url, headers={"User-Agent": "spmd_helpers"})
    deadline = time.monotonic() + _FILE_SECONDS
    data = bytearray()
    with opener.open(request, timeout=_SILENCE_SECONDS) as response:
        while len(data) <= size:
            block = response.read1(min(1 << 16, size + 1 - len(data)))
            if not block:
                break
            data += block
            if time.monotonic() > deadline:
                raise TimeoutError(f"not whole after {_FILE_SECONDS} seconds")
    return bytes(data)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """A server may send us on, though not to an address we would not take."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not _is_safe(newurl):
            raise ValueError(f"sends on to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_safe(url: str) -> bool:
    """https; or http where it never leaves this machine."""
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname:
        return False
    if parts.scheme == "https":
        return True
    if parts.scheme != "http":
        return False
    try:
        return ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        return parts.hostname == "localhost"


def _address(base_url: str) -> str:
    try:
        safe = isinstance(base_url, str) and _is_safe(base_url)
    except ValueError:  # such as a bracket that is never closed
        safe = False
    if not safe:
        raise ValueError(
            f"base_url={base_url!r} must be an https address, of a folder that holds"
            f" the four files: write base_url={_MIRRORS[0]!r}, or leave it out."
        )
    return base_url if base_url.endswith("/") else base_url + "/"


def _cache_folder(cache: str | os.PathLike[str] | None) -> pathlib.Path:
    import pooch

    folder = pooch.os_cache("spmd_helpers") / "mnist" if cache is None else cache
    try:
        return pathlib.Path(folder).expanduser().absolute()
    except (TypeError, RuntimeError):  # such as a user without a home
        raise ValueError(
            f"cache={cache!r} must be the path of a folder: write cache='some/folder'."
        ) from None


def _read_idx(packed: bytes) -> "npt.NDArray[np.uint8]":
    """A gzipped idx file of bytes: 0, 0, 8, rank, a big-endian size each, the data."""
    import gzip
    import math
    import struct
    import zlib

    import numpy as np

    try:
        data = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"not a whole gzip file ({_words(error)})") from None
    rank = data[3] if len(data) >= 4 else 0
    start = 4 + 4 * rank
    if data[:3] != b"\x00\x00\x08" or rank not in (1, 3) or len(data) < start:
        raise ValueError(f"not an idx file of bytes: it begins with {data[:16].hex()}")
    shape = struct.unpack(f">{rank}I", data[4:start])
    if len(data) != start + math.prod(shape):
        raise ValueError(
            f"an idx file that promises {math.prod(shape):,} bytes, shape {shape}, and"
            f" holds {len(data) - start:,}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
