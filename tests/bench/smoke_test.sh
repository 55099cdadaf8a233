#!/usr/bin/env bash
# Runs a benchmark ($2 and what follows) and checks that the names of its figures
# have all parts that $1 lists, separated by semicolons.
set -euo pipefail
parts=$1
shift
json="$TEST_TMPDIR/figures.json"
"$@" --json="$json"
python3 - "$json" "$parts" <<'PYTHON'
import json, sys
figures = json.load(open(sys.argv[1]))
assert figures, "no figures"
for figure in figures:
    for field in ("name", "value", "unit", "reference", "reference_value",
                  "ratio", "target", "met"):
        assert field in figure, figure
names = " ".join(figure["name"] for figure in figures)
for part in sys.argv[2].split(";"):
    assert part in names, f"{part} is not measured"
print(len(figures), "figures")
PYTHON
