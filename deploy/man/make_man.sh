#!/usr/bin/env bash
# Makes the manual pages of the programs in BIN_DIR from their --help:
#
#   deploy/man/make_man.sh BIN_DIR OUT_DIR
#
# leaves OUT_DIR/PROGRAM.1. SOURCE_DATE_EPOCH is their date. Needs help2man.
set -euo pipefail
umask 022

readonly PAGES=(
  "muster-bench:time collectives and verify their results"
  "muster-coordinator:serve the store, membership and barriers of distributed jobs"
  "muster-run:start the ranks of a distributed job on this host"
  "musterctl:look at a muster coordinator and its jobs"
)

# Writes headings and options as help2man knows them: a heading is *Heading*, and
# an option's text begins on its line.
to_help2man() {
  sed -E \
    -e '/^  -([^ ]| [^ ])*$/{s/$/ /; :more; N; s/\n {6,}/ /; tmore; P; D}' \
    -e '/\\$/{N; s/ *\\\n */ /}' \
    -e 's/^usage: /Usage: /' \
    -e 's/^  muster.*/&\n/' \
    -e 's/^The first line .*:$/&\n/' \
    -e 's/^(Exit status): ?/\n*\1*\n\n/' \
    -e 's/^(Commands|Flags|Operations|Options of every command):$/*\1*\n/' \
    -e 's/^Options \((.)/*Options*\n\n\u\1/' \
    -e 's/\):$/./'
}

if [[ $# -ne 2 || ! -d $1 ]]; then
  echo "usage: make_man.sh BIN_DIR OUT_DIR" >&2
  exit 2
fi
bin=$(cd "$1" && pwd)
mkdir -p "$2"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for page in "${PAGES[@]}"; do
  name=${page%%:*}
  "$bin/$name" --help | to_help2man >"$folder/help"
  "$bin/$name" --version >"$folder/version"
  # help2man asks a program; this one has the answers.
  printf '#!/bin/sh\nexec cat "%s/${1#--}"\n' "$folder" >"$folder/$name"
  chmod +x "$folder/$name"
  # The lines of examples stay as they are.
  help2man --no-info --name="${page#*:}" "$folder/$name" |
    sed '/^\.IP$/{n; s/^muster.*/.nf\n&\n.fi/}' >"$2/$name.1"
done
