"""A batch of images, and the rows of it that each device receives."""

from collections.abc import Sequence
from typing import Any

from .._core.palette import SHARDS
from .._errors import NotUnderstood
from .._player.frames import FramePlayer

_DRAWN, _WIDE = 4, 8  # images of a device, and images in a line of the batch
_IMAGE, _STEP = 22, 26  # px of an image, and from one to the next
_HEAD, _EDGE, _GAP = (
    31,
    5,
    8,
)  # px above a device's images, beside them, between devices
_BOX = 2 * _STEP + 2 * _EDGE - 2
_LINE = 4  # devices
_TOP = 20
_MOST = 128  # px of an image's height and width
_INK = 0.4  # of the lightest value: from here on a pixel is drawn


class BatchPlayer(FramePlayer):
    """Plays how a batch of images is divided over devices.

    The first frame shows the batch, the second the rows of each device. Of each device
    its first four images are drawn, in the color of the device. A notebook shows it
    when a cell ends with it; `print` gives the same as text.

    >>> import numpy as np
    >>> print(BatchPlayer(np.eye(8).reshape(2, 2, 4, 4)))
    4 images on 2 devices
    <BLANKLINE>
    The batch. 4 images, one after the other.
    <BLANKLINE>
    The batch: rows 0 to 3.
    <BLANKLINE>
    Divided. Each device receives 2 images that follow each other.
    <BLANKLINE>
    The images of each device: device 0 rows 0 to 1, device 1 rows 2 to 3.

    Args:
        stack: an array of numbers, [devices, images of a device, height, width], for
            two to eight devices and images of at most 128 by 128 pixels.

    Raises:
        NotUnderstood: `stack` is no such array, or an image that is drawn has a number
            that is not finite.

    Used in chapter 01.
    """

    def __init__(self, stack: Any) -> None:
        try:
            images, rows = _read(stack)
        except NotUnderstood as error:
            raise error.with_traceback(None) from None
        devices, drawn = images.shape[:2]
        few = f" The first {drawn} of each {rows} are drawn." if drawn < rows else ""
        ranges = ", ".join(
            f"device {k} rows {k * rows} to {(k + 1) * rows - 1}"
            for k in range(devices)
        )
        each = f"{rows} images that follow each other" if rows > 1 else "one image"
        frames = [
            (
                _svg(images, f"The batch: rows 0 to {devices * rows - 1}", False, rows),
                "The batch",
                f"{devices * rows} images, one after the other.{few}",
            ),
            (
                _svg(images, f"The images of each device: {ranges}", True, rows),
                "Divided",
                f"Each device receives {each}.",
            ),
        ]
        super().__init__(frames, title=f"{devices * rows} images on {devices} devices")


def _read(stack: Any) -> tuple[Any, int]:
    """The images as float32, of each device those that are drawn; how many it has."""
    import numpy as np

    try:
        images = np.asarray(stack)
    except (TypeError, ValueError):
        images = np.zeros(())
    if images.ndim != 4 or not images.size or not 2 <= len(images) <= len(SHARDS):
        what = (
            f"shape {images.shape}" if images.ndim else f"type {type(stack).__name__}"
        )
        raise NotUnderstood(
            f"stack has {what}; give an array [devices, images, height, width] for two "
            f"to {len(SHARDS)} devices, such as x.reshape(8, 20, 28, 28)."
        )
    if not _has_numbers(images):
        raise NotUnderstood(
            f"stack has elements of type {images.dtype}; give an array of real "
            "numbers, such as x.astype('float32')."
        )
    height, width = images.shape[2:]
    if max(height, width) > _MOST:
        step = -(-max(height, width) // _MOST)
        raise NotUnderstood(
            f"stack has images of {height} by {width} pixels, and at most {_MOST} by "
            f"{_MOST} are drawn; give some of the pixels, such as "
            f"x[:, :, ::{step}, ::{step}]."
        )
    with np.errstate(over="ignore"):  # what is too large for float32 is refused below
        drawn = images[:, :_DRAWN].astype(np.float32)
    if not np.isfinite(drawn).all():
        place = tuple(map(int, np.argwhere(~np.isfinite(drawn))[0]))
        raise NotUnderstood(
            f"stack has {drawn[place]} at {list(place)}, which has no brightness; give "
            "finite numbers, such as np.nan_to_num(x)."
        )
    return drawn, images.shape[1]


def _has_numbers(images: Any) -> bool:
    """Whether elements are real numbers, also of JAX's own types, or truth values."""
    name = images.dtype.name
    own = images.dtype.kind == "V" and name.startswith(
        ("bfloat", "float", "int", "uint")
    )
    return images.dtype.kind in "buif" or own


def _svg(images: Any, words: str, is_divided: bool, rows: int) -> str:
    devices, drawn = images.shape[:2]
    items = []
    lines = -(-devices // _LINE)
    width = min(devices, _LINE) * (_BOX + _GAP) - _GAP
    width = max(width, min(devices * drawn, _WIDE) * _STEP)
    height = lines * (_box_height(drawn) + _GAP) - _GAP
    if is_divided:
        items += [_device(k, rows, drawn) for k in range(devices)]
    for k in range(devices):
        for n in range(drawn):
            start, end = _in_batch(k * drawn + n), _on_device(k, n, drawn)
            at = end if is_divided else start
            move = "" if is_divided else f"{end[0] - start[0]} {end[1] - start[1]}"
            items.append(_image(images[k, n], k, at, move))
    return (
        f'<svg viewBox="-1 -1 {width + 2} {height + 2}"><title>{words}</title>'
        f"{''.join(items)}</svg>"
    )


def _box_height(drawn: int) -> int:
    return _HEAD + -(-drawn // 2) * _STEP + _EDGE


def _corner(device: int, drawn: int) -> tuple[int, int]:
    down, right = divmod(device, _LINE)
    return right * (_BOX + _GAP), down * (_box_height(drawn) + _GAP)


def _on_device(device: int, number: int, drawn: int) -> tuple[int, int]:
    left, top = _corner(device, drawn)
    down, right = divmod(number, 2)
    return left + _EDGE + right * _STEP, top + _HEAD + down * _STEP


def _in_batch(number: int) -> tuple[int, int]:
    down, right = divmod(number, _WIDE)
    return right * _STEP, _TOP + down * _STEP


def _device(device: int, rows: int, drawn: int) -> str:
    left, top = _corner(device, drawn)
    middle = left + _BOX / 2
    text = '<text class="spmd-play-text spmd-play-{}" x="{}" y="{}">{}</text>'
    return (
        f'<rect class="spmd-play-device" x="{left}" y="{top}" width="{_BOX}" '
        f'height="{_box_height(drawn)}" rx="5"/>'
        + text.format("name", middle, top + 14, f"device {device}")
        + text.format(
            "small", middle, top + 26, f"{device * rows}:{(device + 1) * rows}"
        )
    )


def _image(image: Any, device: int, at: tuple[int, int], move: str) -> str:
    fill, ink = SHARDS[device]
    scale = _IMAGE / max(image.shape)
    place = f'data-to="{move}" data-leaves=""' if move else ""
    return (
        f'<g {place}><g transform="translate({at[0]} {at[1]})">'
        f'<rect class="spmd-play-cell" width="{_IMAGE}" height="{_IMAGE}" rx="2" '
        f'fill="{fill}"/><path transform="scale({scale:.3f})" fill="{ink}" '
        f'd="{_pixels(image)}"/></g></g>'
    )


def _pixels(image: Any) -> str:
    """The light pixels of an image as a path, a box for each run of them in a line."""
    light = (image > _INK * image.max()).tolist()
    return "".join(
        f"M{start} {y}h{length}v1h-{length}z"
        for y, line in enumerate(light)
        for start, length in _runs(line)
    )


def _runs(line: Sequence[bool]) -> list[tuple[int, int]]:
    """Start and length of each run of true values."""
    runs, start = [], None
    for x, is_light in enumerate([*line, False]):
        if is_light and start is None:
            start = x
        elif not is_light and start is not None:
            runs.append((start, x - start))
            start = None
    return runs
