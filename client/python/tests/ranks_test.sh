#!/usr/bin/env bash
# Runs the pytest suite of the Python package on some ranks.
#
#   ranks_test.sh RANKS PACKAGE_FILE MUSTER_RUN [PYTEST_ARGUMENTS...]
#
# PACKAGE_FILE is muster/_core.abi3.so, as built. muster-run starts the tests of
# on_ranks on each rank; RANKS 0 runs those of alone, once.
set -euo pipefail

ranks=$1
package=$(cd "$(dirname "$2")/.." && pwd)
muster_run=$(readlink -f "$3")
shift 3
export PYTHONPATH="$package" PYTHONDONTWRITEBYTECODE=1
export MUSTER_TEST_RUN="$muster_run"
tests=$package/tests
pytest=(/usr/bin/python3 -m pytest -q -x -p no:cacheprovider -o addopts= "$@")
if [[ "$ranks" == 0 ]]; then
  exec "${pytest[@]}" "$tests/alone"
fi
exec "$muster_run" --standalone --nproc-per-node="$ranks" -- \
  "${pytest[@]}" "$tests/on_ranks"
