#!/usr/bin/env bash
# Builds the checks and puts them with all libraries that they need, but for
# those of CUDA and NCCL, into an archive:
#
#   tests/gpu/bundle.sh OUT.tar.gz
#
# On a machine with a GPU: tar xzf OUT.tar.gz && muster-gpu/run
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
out=$(realpath -m "${1:?usage: tests/gpu/bundle.sh OUT.tar.gz}")

./dev build //tests/gpu:gpu_checks
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/muster-gpu/lib"
cp bin/gpu_checks "$folder/muster-gpu/"
ldd bin/gpu_checks | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*ld-linux[^ ]*\) .*/\1/p' |
  xargs -I{} cp -L {} "$folder/muster-gpu/lib/"
cat >"$folder/muster-gpu/run" <<'RUN'
#!/usr/bin/env bash
# Runs all checks; arguments go to them (--gtest_filter=...).
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# The bundle's libraries, then the machine's for the driver, CUDA and NCCL.
machine=/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/local/nvidia/lib64
machine=$machine:${CUDA_HOME:-/usr/local/cuda}/lib64:${LD_LIBRARY_PATH:-}
exec "$here"/lib/ld-linux-*.so.* --library-path "$here/lib:$machine" \
  "$here/gpu_checks" "$@"
RUN
chmod +x "$folder/muster-gpu/run"
tar -C "$folder" -czf "$out" muster-gpu
echo "bundle: $out ($(du -h "$out" | cut -f1))"
