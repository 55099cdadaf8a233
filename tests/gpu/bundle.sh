#!/usr/bin/env bash
# Builds the programs of `run` and puts them into an archive, with all libraries
# that they need except those of CUDA and NCCL, and the example's data:
#
#   tests/gpu/bundle.sh OUT.tar.gz
#
# On a machine with a GPU: tar xzf OUT.tar.gz && muster-gpu/run
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
out=$(realpath -m "${1:?usage: tests/gpu/bundle.sh OUT.tar.gz}")
data=/usr/share/datasets/fashion-mnist

./dev build //tests/gpu:gpu_checks //worker/launcher:muster-run \
  //worker/bench:muster-bench //client/examples:train_fashion_mnist
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bundle=$folder/muster-gpu
mkdir -p "$bundle/lib/c" "$bundle/lib/cxx" "$bundle/programs"
for program in gpu_checks muster-run muster-bench train_fashion_mnist; do
  # The archive may have to pass a limit of 64 MiB.
  strip -o "$bundle/programs/$program" "bin/$program"
  ldd "bin/$program" |
    sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*ld-linux[^ ]*\) .*/\1/p' |
    xargs -I{} cp -Lu {} "$bundle/lib/"
  cp tests/gpu/start "$bundle/$program"
done
# The C library with the parts that the driver, CUDA and NCCL load, and the C++
# library: `start` chooses between these and the system's.
mv "$bundle"/lib/{ld-linux-x86-64,libc,libm}.so.* "$bundle/lib/c/"
mv "$bundle"/lib/{libstdc++,libgcc_s}.so.* "$bundle/lib/cxx/"
for library in dl.so.2 pthread.so.0 rt.so.1 util.so.1 resolv.so.2; do
  rm -f "$bundle/lib/lib$library"
  cp -L "/lib/x86_64-linux-gnu/lib$library" "$bundle/lib/c/"
done
getconf GNU_LIBC_VERSION >"$bundle/lib/c/version"
basename "$(readlink -f /lib/x86_64-linux-gnu/libstdc++.so.6)" \
  >"$bundle/lib/cxx/version"
cp tests/gpu/run "$bundle/"
if [[ -d "$data" ]]; then cp -r "$data" "$bundle/data"; fi
tar -C "$folder" -czf "$out" muster-gpu
echo "bundle: $out ($(du -h "$out" | cut -f1))"
