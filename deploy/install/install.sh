#!/usr/bin/env bash
# Installs what was built: programs, library, headers, and what CMake,
# pkg-config, man, bash and systemd read. Called by ./dev install.
#
#   install.sh --built=FOLDER --prefix=DIR [--destdir=DIR] [--libdir=DIR] [--check]
#
# FOLDER has the programs and the library as Bazel leaves them. All files go to
# DESTDIR/PREFIX, and work from PREFIX; the CMake files work from any place.
# LIBDIR, below PREFIX, is "lib" unless it is given. The coordinator's
# configuration goes to /etc/muster if PREFIX is /usr, else to PREFIX/etc/muster;
# one that is there stays. --check looks only whether files can go there.
set -euo pipefail
umask 022
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly source

readonly PROGRAMS=(
  coordinator/muster-coordinator
  worker/launcher/muster-run
  worker/bench/muster-bench
  client/tools/musterctl/musterctl
)

die() { echo "install: $*" >&2; exit 2; }

built='' prefix='' destdir='' libdir=lib check=0
for argument in "$@"; do
  case "$argument" in
    --built=*) built=${argument#*=} ;;
    --prefix=*) prefix=${argument#*=} ;;
    --destdir=*) destdir=${argument#*=} ;;
    --libdir=*) libdir=${argument#*=} ;;
    --check) check=1 ;;
    *) die "unknown argument '$argument': there are --prefix=DIR, --destdir=DIR and --libdir=DIR" ;;
  esac
done
[[ "$prefix" == /* ]] || die "--prefix must be an absolute path, got '$prefix'"
prefix=$(realpath -ms "$prefix")
# pkg-config and systemd read it, each with its own rules for other characters.
[[ "$prefix$libdir" =~ ^[A-Za-z0-9/._+-]*$ ]] ||
  die "--prefix and --libdir may have letters, digits and /._+- only, got '$prefix' and '$libdir'; what is installed may be moved elsewhere"
[[ "$prefix" != / ]] || prefix=''
if [[ -n "$destdir" ]]; then destdir=$(realpath -ms "$destdir"); fi
# Given as a whole path, as Debian does, it must lie below the prefix.
if [[ "$libdir" == /* ]]; then
  [[ "$libdir/" == "$prefix"/* ]] ||
    die "--libdir must lie below the prefix '$prefix', got '$libdir'"
  libdir=${libdir#"$prefix"}
fi
libdir=$(realpath -ms "/$libdir")
libdir=${libdir#/}
[[ -n "$libdir" ]] || die "--libdir must be a folder below the prefix, got an empty one"
readonly root="$destdir$prefix"
configuration=$prefix/etc/muster
if [[ "$prefix" == /usr ]]; then configuration=/etc/muster; fi
readonly configuration

# The nearest folder that exists decides.
place=${root:-/}
while [[ ! -e "$place" ]]; do place=$(dirname "$place"); done
[[ -d "$place" ]] || die "cannot install below '${root:-/}': '$place' is not a folder"
if ! probe=$(mktemp -d -p "$place" .muster.XXXXXX 2>/dev/null); then
  die "cannot write to '$place' as $(id -un): choose another --prefix, a --destdir, or become root"
fi
rmdir "$probe"
if [[ $check -eq 1 ]]; then exit; fi
[[ -d "$built" ]] || die "--built must be the folder of what was built, got '$built'"

number() { sed -n "s/^#define MUSTER_VERSION_$1 //p" "$source/base/include/muster/version.h"; }
soversion=$(number MAJOR)
version="$soversion.$(number MINOR).$(number PATCH)"

# put MODE FROM TO: copies a file to TO, below the root.
put() {
  [[ -f "$2" ]] || die "'$2' is missing: build first"
  install -D -m "$1" "$2" "$root/$3"
}

# put_stripped FROM TO: a program or library, without debug information.
put_stripped() {
  put 755 "$1" "$2"
  strip --strip-debug "$root/$2"
}

# fill FROM TO: a file with the names between @, and paths, replaced.
fill() {
  # From lib/cmake/Muster up to the prefix.
  local up
  up=$(sed -E 's|[^/]+|..|g' <<<"$libdir/cmake/Muster")
  mkdir -p "$(dirname "$root/$2")"
  sed -e "s|@VERSION@|$version|g" -e "s|@MAJOR@|$(number MAJOR)|g" \
    -e "s|@MINOR@|$(number MINOR)|g" -e "s|@PREFIX@|$prefix|g" \
    -e "s|@LIBDIR@|$libdir|g" -e "s|@UP@|$up|g" -e "s|/usr/bin/|$prefix/bin/|g" \
    -e "s|/etc/muster/|$configuration/|g" \
    "$source/deploy/install/$1" >"$root/$2"
  chmod 644 "$root/$2"
}

for program in "${PROGRAMS[@]}"; do
  put_stripped "$built/$program" "bin/${program##*/}"
done
put_stripped "$built/client/lib/libmuster.so.$soversion" "$libdir/libmuster.so.$version"
ln -sf "libmuster.so.$version" "$root/$libdir/libmuster.so.$soversion"
ln -sf "libmuster.so.$soversion" "$root/$libdir/libmuster.so"
for part in base dataplane client; do
  while read -r header; do
    put 644 "$source/$part/include/$header" "include/$header"
  done < <(cd "$source/$part/include" && find -L muster -name '*.h' -o -name '*.hpp')
done
for program in "${PROGRAMS[@]}"; do
  put 644 "$source/deploy/completion/muster" \
    "share/bash-completion/completions/${program##*/}"
done
"$source/deploy/man/make_man.sh" "$root/bin" "$root/share/man/man1"
fill ../systemd/muster-coordinator.service lib/systemd/system/muster-coordinator.service
if [[ ! -e "$destdir$configuration/coordinator.conf" ]]; then
  install -d "$destdir$configuration"
  sed "s|/etc/muster/|$configuration/|g" "$source/deploy/systemd/coordinator.conf" \
    >"$destdir$configuration/coordinator.conf"
fi
fill MusterConfig.cmake.in "$libdir/cmake/Muster/MusterConfig.cmake"
fill MusterConfigVersion.cmake.in "$libdir/cmake/Muster/MusterConfigVersion.cmake"
fill muster.pc.in "$libdir/pkgconfig/muster.pc"

echo "installed muster $version below ${root:-/}"
if [[ -z "$destdir" ]]; then
  echo "muster-coordinator.service needs a user: useradd --system --user-group --no-create-home --home-dir /var/lib/muster --shell /usr/sbin/nologin muster"
  echo "if a program does not find libmuster.so.$soversion: run ldconfig as root, or set LD_LIBRARY_PATH=$prefix/$libdir"
fi
