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
    assert figure["value"] > 0 and figure["reference_value"] > 0, figure
    for field in ("name", "unit", "reference", "ratio", "target", "met"):
        assert field in figure, figure
print(len(figures), "figures")
PYTHON
