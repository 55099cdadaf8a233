"""What is run by both: PyTorch's gloo and muster's.

One line a case: VERB DTYPE OP COUNT ROOT. Rank r has as element i the number
(7 i + 3 r) mod 5 - 2 times SCALE[DTYPE]: below zero, too, beyond what a sum or
product of integers holds, which wraps, and exact in floating point.
"""

# The types that torch 1.13's gloo reduces.
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
        # And with bits.
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

