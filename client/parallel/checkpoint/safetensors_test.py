#!/usr/bin/env python3
"""Other programs read a checkpoint's files: by the published format alone."""

import json
import os
import subprocess
import sys
import tempfile

import numpy

DTYPES = {"F32": "<f4", "BF16": "<u2", "U8": "u1"}


def read_safetensors(path):
    """Returns the tensors of a file by key. bfloat16 comes as its bits."""
    with open(path, "rb") as file:
        content = file.read()
    header_bytes = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + header_bytes])
    data = content[8 + header_bytes:]
    assert content[8:9] == b"{", "the header begins with a brace"
    tensors, end_before = {}, 0
    for key, entry in sorted(header.items(),
                             key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == end_before, f"a gap before {key}"
        end_before = end
        dtype = numpy.dtype(DTYPES[entry["dtype"]])
        assert (8 + header_bytes + begin) % dtype.itemsize == 0, f"{key} is unaligned"
        tensors[key] = numpy.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
    assert end_before == len(data), "bytes after the last tensor"
    return tensors


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, folder, "-1"], check=True)
        # The fourth save.
        step = os.path.join(folder, "step-3.4")
        assert sorted(os.listdir(step)) == [
            "checkpoint.json", "rank-00000.safetensors", "rank-00001.safetensors",
        ], os.listdir(step)
        tensors = {}
        for name in ("rank-00000.safetensors", "rank-00001.safetensors"):
            part = read_safetensors(os.path.join(step, name))
            assert part.keys().isdisjoint(tensors), "replicas are stored once"
            tensors.update(part)
        assert set(tensors) == {"w[0:2,0:3]", "w[2:4,0:3]", "b", "flags"}, tensors
        whole = numpy.concatenate([tensors["w[0:2,0:3]"], tensors["w[2:4,0:3]"]])
        assert whole.shape == (4, 3) and tensors["b"].shape == (5,)
        # Elements are made from their numbers, by one multiplication: see
        # Parts::Fill. So their differences are known.
        bits = whole.reshape(-1).view("<u4").astype(numpy.uint64)
        steps = (bits[1:] - bits[:-1]) % 2**32
        assert (steps == 0xBF58476D1CE4E5B9 % 2**32).all(), steps
        with open(os.path.join(step, "checkpoint.json")) as file:
            metadata = json.load(file)["checkpoint"]
        assert metadata["values"] == {"step": "3"} and metadata["world_size"] == 2
        assert metadata["tensors"]["w"]["shape"] == [4, 3]


if __name__ == "__main__":
    main()
