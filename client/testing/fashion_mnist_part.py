"""A part of Fashion-MNIST, for tests whose ranks start often."""

import gzip
import os
import struct

DATA = "/usr/share/datasets/fashion-mnist"
IMAGES = {"train": 12000, "t10k": 2000}


def write(folder):
    """Writes the first images of the data set and their labels."""
    for part, count in IMAGES.items():
        for name, header, item in (
                (f"{part}-images-idx3-ubyte.gz", 16, 28 * 28),
                (f"{part}-labels-idx1-ubyte.gz", 8, 1)):
            with gzip.open(os.path.join(DATA, name)) as file:
                head, items = file.read(header), file.read(count * item)
            with gzip.open(os.path.join(folder, name), "wb", 1) as file:
                file.write(head[:4] + struct.pack(">I", count) + head[8:] +
                           items)
