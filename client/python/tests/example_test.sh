#!/usr/bin/env bash
# The example trains on two ranks: the loss falls, and the ranks agree.
#
#   example_test.sh PACKAGE_FILE MUSTER_RUN EXAMPLE
set -euo pipefail

PYTHONPATH=$(cd "$(dirname "$1")/.." && pwd)
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1
log=$("$2" --standalone --nproc-per-node=2 -- /usr/bin/python3 "$3" \
  --epochs=1 --max-steps=100)
echo "$log"
grep -q "parameters equal" <<<"$log"
accuracy=$(sed -n 's/.*accuracy \([0-9]*\)\..*/\1/p' <<<"$log")
[[ "$accuracy" -ge 70 ]]
