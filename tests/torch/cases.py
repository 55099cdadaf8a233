"""The cases that run on PyTorch's gloo and on muster's.

One line per case: VERB DTYPE OP COUNT ROOT. Element i of rank r is
((7 i + 3 r) mod 5 - 2) times SCALE[DTYPE]: some are negative, sums and products
of integers wrap, and those in floating point are exact.
"""

# The types that gloo in torch 1.13 reduces.
DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int32", "int64")
COUNTS = (1, 13, 20000)
SCALE = {"uint8": 50, "int8": 50, "int32": 1000000007,
         "int64": 4000000000000000037, "float16": 0.5, "float32": 0.5,
         "float64": 0.5}

MOVES = ("broadcast", "all_gather", "gather", "scatter", "all_to_all_single",
         "send_recv")


def all_cases(world_size):
    lines = []
    for number, dtype in enumerate(DTYPES):
        ops = ["sum", "product", "min", "max"]
        # Bitwise operations, too.
        if dtype in INTEGERS:
            ops += ["band", "bor", "bxor"]
        for op in ops:
            for count in COUNTS:
                lines.append(f"all_reduce {dtype} {op} {count} 0")
                root = (number + count) % world_size
                lines.append(f"reduce {dtype} {op} {count} {root}")
        for verb in MOVES:
            for count in COUNTS:
                root = (number + count) % world_size
                lines.append(f"{verb} {dtype} sum {count} {root}")
    return lines

