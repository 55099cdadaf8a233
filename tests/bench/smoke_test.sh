#!/usr/bin/env bash
# Runs a benchmark ($@) and checks that it reports every load it lists.
set -euo pipefail
json="$TEST_TMPDIR/figures.json"
"$@" --json="$json"
python3 - "$json" <<'PYTHON'
import json, sys
figures = json.load(open(sys.argv[1]))
assert figures, "no figures"
for figure in figures:
    for field in ("name", "value", "unit", "reference", "reference_value",
                  "ratio", "target", "met"):
        assert field in figure, figure
names = " ".join(figure["name"] for figure in figures)
for part in ("set stream/1", "one session", "processes", "release", "idle",
             "rendezvous", "barrier", "failure", "leave", "by the end"):
    assert part in names, f"{part} is not measured"
print(len(figures), "figures")
PYTHON
