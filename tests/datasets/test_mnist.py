"""load_mnist: the embedded digits, and the download against a server of our own."""

import contextlib
import gzip
import hashlib
import http.server
import os
import pathlib
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.error

import numpy as np
import pytest
import trustme

from spmd_helpers._datasets import mnist as datasets_mnist
from spmd_helpers._datasets.mnist import load_mnist
from spmd_helpers._errors import DownloadFailed

SRC = pathlib.Path(datasets_mnist.__file__).resolve().parents[2]
NAMES = tuple(datasets_mnist._FILES)


def test_the_embedded_file_is_the_one_its_readme_describes():
    folder = pathlib.Path(datasets_mnist.__file__).parent
    sha256 = hashlib.sha256((folder / "mnist-10k.npz").read_bytes()).hexdigest()
    assert sha256 == "d1ad8f605da887e893897749323a75019906cf2fe5c88a9369d564d7ef983213"
    assert sha256 in (folder / "README.md").read_text()


def test_embedded_digits():
    digits = load_mnist()
    assert [(a.dtype.name, a.shape) for a in digits] == [
        ("float32", (8000, 28, 28)),
        ("int32", (8000,)),
        ("float32", (2000, 28, 28)),
        ("int32", (2000,)),
    ]
    for images, labels in (digits[:2], digits[2:]):
        assert images.min() == 0
        assert images.max() == 1
        assert set(labels.tolist()) == set(range(10))
        assert np.bincount(labels).min() > len(labels) / 15  # no digit is rare
    pictures = [image.tobytes() for image in (*digits[0], *digits[2])]
    assert len(set(pictures)) == 10_000
    assert digits.train_labels[:8].tolist() == [9, 0, 2, 5, 2, 8, 5, 6]
    assert all((a == b).all() for a, b in zip(digits, load_mnist(), strict=True))
    assert repr(digits) == (
        "MNIST(train_images=float32[8000, 28, 28], train_labels=int32[8000],"
        " test_images=float32[2000, 28, 28], test_labels=int32[2000])"
    )


def test_labels_belong_to_their_images():
    images, labels, test_images, test_labels = load_mnist()
    means = np.stack([images[labels == k].mean(0).ravel() for k in range(10)])
    # |x - m|^2 without the |x|^2 that all ten share
    scores = (means**2).sum(1) - 2 * test_images.reshape(2000, -1) @ means.T
    assert (scores.argmin(1) == test_labels).mean() > 0.75
    assert (scores.argmin(1) == np.roll(test_labels, 1)).mean() < 0.2


def test_importing_it_takes_neither_numpy_nor_jax():
    code = (
        "import sys, spmd_helpers._datasets.mnist;"
        "assert not {'numpy', 'jax'} & {*sys.modules}, 'imported'"
    )
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    assert done.returncode == 0


# The four files of the database, made small: 60 digits and 10.


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.tobytes(), mtime=0)


def made_up_files():
    rng = np.random.default_rng(0)
    arrays = (
        rng.integers(0, 256, (60, 28, 28), np.uint8),
        rng.integers(0, 10, 60, np.uint8),
        rng.integers(0, 256, (10, 28, 28), np.uint8),
        rng.integers(0, 10, 10, np.uint8),
    )
    return arrays, dict(zip(NAMES, map(idx, arrays), strict=True))


def table_of(files):
    return {n: (len(b), hashlib.sha256(b).hexdigest()) for n, b in files.items()}


@pytest.fixture
def made_up(monkeypatch):
    """Small files in place of the real ones: (arrays, what a server holds)."""
    arrays, files = made_up_files()
    monkeypatch.setattr(datasets_mnist, "_FILES", table_of(files))
    monkeypatch.setenv("no_proxy", "*")
    return arrays, files


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        body = self.server.files.get(self.path.rpartition("/")[2])
        if body is None:
            self.send_error(404)
        elif callable(body):
            body(self)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the other side stopped reading
                self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serve(files, context=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.requests = files, []
    server.handle_error = lambda *_: None  # a client that hangs up is part of a test
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    scheme = "http" if context is None else "https"
    try:
        yield server, f"{scheme}://127.0.0.1:{server.server_port}/mnist/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def is_made_up(digits, arrays):
    want = (
        arrays[0] / np.float32(255),
        arrays[1],
        arrays[2] / np.float32(255),
        arrays[3],
    )
    assert [a.dtype.name for a in digits] == ["float32", "int32"] * 2
    return all((a == b).all() for a, b in zip(digits, want, strict=True))


def test_download_then_cache(made_up, tmp_path, capsys):
    arrays, files = made_up
    cache = tmp_path / "new" / "folder"
    with serve(files) as (server, url):
        assert is_made_up(load_mnist(full=True, cache=cache, base_url=url), arrays)
        assert server.requests == [f"/mnist/{name}" for name in NAMES]
        host = url.split("/")[2]
    assert capsys.readouterr().out.splitlines() == [
        f"downloading {name} ({len(files[name]):,} bytes) from {host}" for name in NAMES
    ]
    assert {p.name: p.read_bytes() for p in cache.iterdir()} == files
    # The server is gone: what is kept is enough.
    assert is_made_up(load_mnist(full=True, cache=str(cache), base_url=url), arrays)
    assert capsys.readouterr().out == ""


def test_a_cached_file_that_changed_is_fetched_anew(made_up, tmp_path):
    arrays, files = made_up
    with serve(files) as (server, url):
        load_mnist(full=True, cache=tmp_path, base_url=url)
        bad = bytearray(files[NAMES[2]])
        bad[-9] ^= 1
        (tmp_path / NAMES[2]).write_bytes(bad)
        server.requests.clear()
        assert is_made_up(load_mnist(full=True, cache=tmp_path, base_url=url), arrays)
        assert server.requests == [f"/mnist/{NAMES[2]}"]
    assert (tmp_path / NAMES[2]).read_bytes() == files[NAMES[2]]


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(bytes(1 << 16))
    except OSError:  # the other side has had enough
        handler.server.cut_off.set()


def hang_up(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"half")


def redirect(handler):
    handler.send_response(302)
    handler.send_header("Location", "http://example.org/elsewhere")
    handler.end_headers()


def no_answer(handler):
    handler.connection.close()


FAILURES = {
    "missing": (None, "HTTP 404 Not Found"),
    "empty": (b"", "cut short, 0 of {size} bytes"),
    "truncated": (lambda body: body[:-1], "cut short, {short} of {size} bytes"),
    "hangs up": (hang_up, "cut short, 4 of {size} bytes"),
    "longer": (lambda body: body + b"\0", "more than the {size} bytes of the file"),
    "endless": (endless, "more than the {size} bytes of the file"),
    "corrupt": (
        lambda body: body[:-1] + bytes([body[-1] ^ 1]),
        "SHA256 hash of downloaded file ({name}) does not match the known hash:"
        " expected {sha256} but got {digest}.",
    ),
    "redirect": (
        redirect,
        "sends on to http://example.org/elsewhere, which is not https",
    ),
    "no answer": (no_answer, "RemoteDisconnected: Remote end closed connection"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_failure_says_what_happened_and_leaves_nothing(made_up, tmp_path, kind):
    _, files = made_up
    name = NAMES[1]
    good = files[name]
    answer, words = FAILURES[kind]
    body = answer
    if callable(answer) and answer not in (endless, hang_up, redirect, no_answer):
        body = answer(good)
    with serve({**files, name: body}) as (server, url):
        server.cut_off = threading.Event()
        with pytest.raises(DownloadFailed) as caught:
            load_mnist(full=True, cache=tmp_path, base_url=url)
        if kind == "endless":
            assert server.cut_off.wait(30)
    digest = hashlib.sha256(body).hexdigest() if isinstance(body, bytes) else ""
    words = words.format(
        name=name,
        size=len(good),
        short=len(good) - 1,
        digest=digest,
        sha256=hashlib.sha256(good).hexdigest(),
    )
    first, tried, kept, retry, by_hand = str(caught.value).splitlines()
    assert first == (
        f"load_mnist(full=True) could not get {name}. Tried, in this order:"
    )
    if kind in ("no answer", "corrupt"):  # Python's words, and pooch says more
        assert tried.startswith(f"  {url}{name}: {words}")
    else:
        assert tried == f"  {url}{name}: {words}"
    assert kept == (
        "Nothing of that file was kept. load_mnist() still gives 10,000 real digits"
        " with no download."
    )
    assert retry == (
        "To retry, run load_mnist(full=True) again (cache= takes another folder,"
        " base_url= another address)."
    )
    assert by_hand == (
        f"Or put {', '.join(NAMES)} into {tmp_path} yourself: they are checked and"
        " used."
    )
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    # The file before it arrived whole and is kept; of this one there is nothing.
    assert os.listdir(tmp_path) == [NAMES[0]]


def test_the_second_mirror_is_used_where_the_first_fails(
    made_up, tmp_path, capsys, monkeypatch
):
    arrays, files = made_up
    with serve({NAMES[0]: b"not a digit"}) as (bad, one), serve(files) as (good, two):
        monkeypatch.setattr(datasets_mnist, "_MIRRORS", (one, two))
        assert is_made_up(load_mnist(full=True, cache=tmp_path), arrays)
        assert bad.requests == good.requests == [f"/mnist/{name}" for name in NAMES]
    assert len(capsys.readouterr().out.splitlines()) == 8
    assert sorted(os.listdir(tmp_path)) == sorted(NAMES)


def test_both_mirrors_are_named(made_up, tmp_path, monkeypatch):
    with serve({}) as (_, one), serve({}) as (_, two):
        monkeypatch.setattr(datasets_mnist, "_MIRRORS", (one, two))
        with pytest.raises(DownloadFailed) as caught:
            load_mnist(full=True, cache=tmp_path)
    assert str(caught.value).splitlines()[1:3] == [
        f"  {one}{NAMES[0]}: HTTP 404 Not Found",
        f"  {two}{NAMES[0]}: HTTP 404 Not Found",
    ]


def test_no_network(made_up, tmp_path):
    with serve({}) as (_, url):
        pass  # a port that nobody listens on any more
    with pytest.raises(DownloadFailed, match="ConnectionRefusedError: Connection ref"):
        load_mnist(full=True, cache=tmp_path, base_url=url)
    assert os.listdir(tmp_path) == []


def test_an_error_that_is_only_words():
    words = datasets_mnist._words(urllib.error.URLError("no host given"))
    assert words == "URLError: no host given"
    inner = urllib.error.URLError(TimeoutError("timed out"))
    assert datasets_mnist._words(inner) == "TimeoutError: timed out"


@pytest.mark.parametrize("limit", ["_SILENCE_SECONDS", "_FILE_SECONDS"])
def test_a_server_that_dawdles_is_given_up(made_up, tmp_path, monkeypatch, limit):
    _, files = made_up
    release = threading.Event()

    def dawdle(handler):
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"x")
        handler.wfile.flush()
        release.wait(60)

    monkeypatch.setattr(
        datasets_mnist, limit, 0.05 if limit == "_SILENCE_SECONDS" else -1
    )
    words = "timed out" if limit == "_SILENCE_SECONDS" else "not whole after -1 seconds"
    with serve({**files, NAMES[0]: dawdle}) as (_, url):
        try:
            with pytest.raises(DownloadFailed, match=f"TimeoutError: {words}"):
                load_mnist(full=True, cache=tmp_path, base_url=url)
        finally:
            release.set()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "step",
    [(tempfile, "NamedTemporaryFile"), (pathlib.Path, "write_bytes"), (shutil, "move")],
)
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_disk_that_refuses(made_up, tmp_path, monkeypatch, step, error):
    _, files = made_up

    def refuse(*_, **__):
        raise error

    with serve(files) as (_, url), monkeypatch.context() as patched:
        patched.setattr(*step, refuse)
        if isinstance(error, OSError):
            with pytest.raises(DownloadFailed) as caught:
                load_mnist(full=True, cache=tmp_path, base_url=url)
            assert f"  {tmp_path / NAMES[0]}: OSError: No space left\n" in str(
                caught.value
            )
        else:  # a reader's interrupt stays one
            with pytest.raises(KeyboardInterrupt):
                load_mnist(full=True, cache=tmp_path, base_url=url)
    assert os.listdir(tmp_path) == []


def test_a_cache_folder_that_cannot_be(made_up, tmp_path):
    _, files = made_up
    (tmp_path / "file").write_text("in the way")
    cache = tmp_path / "file" / "mnist"
    words = "NotADirectoryError: Not a directory"
    with serve(files) as (_, url), pytest.raises(DownloadFailed, match=words):
        load_mnist(full=True, cache=cache, base_url=url)
    assert os.listdir(tmp_path) == ["file"]


def test_https_with_a_certificate(made_up, tmp_path, monkeypatch):
    arrays, files = made_up
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with serve(files, context) as (_, url):
        with pytest.raises(DownloadFailed, match="certificate verify failed"):
            load_mnist(full=True, cache=tmp_path, base_url=url)
        assert os.listdir(tmp_path) == []
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert is_made_up(load_mnist(full=True, cache=tmp_path, base_url=url), arrays)


LOAD = """
import sys
from spmd_helpers._datasets import mnist as _data
sys.path.insert(0, sys.argv[3])
from test_mnist import made_up_files, table_of, is_made_up
arrays, files = made_up_files()
_data._FILES = table_of(files)
digits = _data.load_mnist(full=True, cache=sys.argv[1], base_url=sys.argv[2])
assert is_made_up(digits, arrays)
"""


def test_two_processes_at_once(made_up, tmp_path):
    _, files = made_up
    both = threading.Barrier(2)

    def together(handler):  # neither is answered before both have asked
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(60)
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(files[NAMES[0]])

    with serve({**files, NAMES[0]: together}) as (server, url):
        here = pathlib.Path(__file__).parent
        command = [sys.executable, "-c", LOAD, str(tmp_path), url, str(here)]
        env = {**os.environ, "PYTHONPATH": str(SRC)}
        running = [subprocess.Popen(command, env=env) for _ in range(2)]
        assert [process.wait(120) for process in running] == [0, 0]
        assert server.requests.count(f"/mnist/{NAMES[0]}") == 2
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == files


@pytest.mark.parametrize(
    "address",
    [
        "http://example.org/mnist/",
        "http://localhost.example.org/",
        "http://[::2]/",
        "http://192.168.0.1/mnist/",
        "ftp://127.0.0.1/",
        "file:///etc/",
        "https:///nowhere",
        "http://[oops/",
        "mnist",
        "",
        3,
    ],
)
def test_an_address_that_is_not_https(address, tmp_path):
    with pytest.raises(ValueError, match="must be an https address") as caught:
        load_mnist(full=True, cache=tmp_path / "cache", base_url=address)
    assert str(caught.value) == (
        f"base_url={address!r} must be an https address, of a folder that holds the"
        " four files: write"
        " base_url='https://ossci-datasets.s3.amazonaws.com/mnist/', or leave it out."
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "address",
    ["https://a.b/c", "https://a.b/c/", "http://localhost:1/", "http://[::1]:2/"],
)
def test_an_address_that_is_taken(address):
    assert datasets_mnist._address(address) == address.rstrip("/") + "/"
    assert all(
        datasets_mnist._address(mirror) == mirror for mirror in datasets_mnist._MIRRORS
    )
    assert all(mirror.startswith("https://") for mirror in datasets_mnist._MIRRORS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"full": 60000},
            "full=60000 must be True (all 70,000 digits, by download) or False"
            + " (the embedded 10,000): write load_mnist(full=True) or load_mnist().",
        ),
        (
            {"cache": "here"},
            "cache='here' is for the download, and load_mnist() downloads nothing:"
            + " write load_mnist(full=True, cache='here').",
        ),
        (
            {"full": True, "cache": 3},
            "cache=3 must be the path of a folder: write cache='some/folder'.",
        ),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match="write ") as caught:
        load_mnist(**arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("given", "where"), [(None, "xdg/spmd_helpers/mnist"), ("~/mine", "mine")]
)
def test_the_cache_folder(given, where, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert datasets_mnist._cache_folder(given) == tmp_path / where


def test_a_user_without_a_home(monkeypatch):
    def none(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "expanduser", none)
    with pytest.raises(ValueError, match="write cache='some/folder'"):
        datasets_mnist._cache_folder(None)


def test_without_pooch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(datasets_mnist, "is_installed", lambda name: name != "pooch")
    required = []
    monkeypatch.setattr(datasets_mnist, "require", required.append)
    assert load_mnist().test_labels.shape == (2000,)
    assert required == []
    with pytest.raises(ValueError, match="must be an https address"):
        load_mnist(full=True, base_url="")
    assert required == ["pooch"]


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"plain", r"not a whole gzip file \(BadGzipFile: Not a gzipped file"),
        (idx(np.zeros(9, np.uint8))[:-3], r"not a whole gzip file \(EOFError: "),
        (gzip.compress(b"", mtime=0), "not an idx file of bytes: it begins with $"),
        (
            gzip.compress(bytes([0, 0, 13, 1, 0, 0, 0, 1, 7]), mtime=0),
            "begins with 00000d01",
        ),
        (
            gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 1]), mtime=0),
            "begins with 0000080300000001",
        ),
        (
            gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7]), mtime=0),
            r"promises 3 bytes, shape \(3,\), and holds 1",
        ),
        (
            gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7, 7]), mtime=0),
            r"promises 1 bytes, shape \(1,\), and holds 2",
        ),
    ],
)
def test_an_idx_file_that_is_none(packed, message):
    with pytest.raises(ValueError, match=message):
        datasets_mnist._read_idx(packed)


def test_the_table_of_the_real_files():
    assert sum(size for size, _ in datasets_mnist._FILES.values()) == 11_594_722
    assert all(
        len(bytes.fromhex(sha256)) == 32 for _, sha256 in datasets_mnist._FILES.values()
    )
