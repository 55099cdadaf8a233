#!/usr/bin/env bash
# Makes the Debian packages from what ./dev install leaves; called by
# ./dev package.
#
#   deploy/debian/package.sh INSTALLED BUILT ARCHIVES OUT
#
# INSTALLED is a destdir with everything below /usr, BUILT has what Bazel made of
# client/python, ARCHIVES has copies of the archives that are part of libmuster,
# OUT is where the .deb files go. SOURCE_DATE_EPOCH is their date. Needs no rights.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
installed=$(cd "$1" && pwd)
version=$("$installed/usr/bin/muster-run" --version | cut -d' ' -f2)
built=$(cd "$2" && pwd)
archives=$(cd "$3" && pwd)
mkdir -p "$4"
OUT=$(cd "$4" && pwd)
export OUT

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/debian"
cp -r "$here/." "$work/debian/"
rm -f "$work/debian"/*.sh
cp -r "$installed" "$work/installed"
# debhelper places the unit, and enables it.
mv "$work/installed/usr/lib/systemd/system/muster-coordinator.service" \
  "$work/debian/"
python=$work/installed/usr/lib/python3/dist-packages
install -D -m 644 -t "$python/muster" "$here/../../client/python/muster"/*.py \
  "$here/../../client/python/muster"/{py.typed,_core.pyi} \
  "$built/client/python/muster"/{_abi.py,collectives.pyi,_core.abi3.so}
# The library is where others are, too.
patchelf --remove-rpath "$python/muster/_core.abi3.so"
mkdir "$python/muster-$version.dist-info"
cat >"$python/muster-$version.dist-info/METADATA" <<TEXT
Metadata-Version: 2.1
Name: muster
Version: $version
License: Apache-2.0
TEXT
cat >"$work/debian/changelog" <<TEXT
muster ($version) bookworm; urgency=medium

  * Version $version: see CHANGELOG.md of the source.

 -- muster developers <developers@muster.invalid>  $(date -Rd "@$SOURCE_DATE_EPOCH")
TEXT

# The licences of what is part of libmuster want their notices to come along.
BUILT_USING=
for package in $(cd "$archives"; dpkg -S $(printf '*/%s\n' *.a) | cut -d: -f1 |
    sort -u); do
  install -D -m 644 "/usr/share/doc/$package/copyright" \
    "$work/installed/usr/share/doc/libmuster0/$package.copyright"
  BUILT_USING+=$(dpkg-query -W \
    -f '${source:Package} (= ${source:Version}), ' "$package")
done
export BUILT_USING=${BUILT_USING%, }

cd "$work"
# Nothing is compiled: no symbols for a package of their own.
export DEB_BUILD_OPTIONS="noautodbgsym ${DEB_BUILD_OPTIONS:-}"
debian/rules binary
