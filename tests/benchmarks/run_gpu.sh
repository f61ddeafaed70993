#!/usr/bin/env bash
# Everything worth knowing about a GPU, the most important first, for a machine that is lent for ten minutes.
# Results are written after every row, so a run that is cut off still reports. Nothing is installed.
#
#   tests/benchmarks/run_gpu.sh [FOLDER]      (default: $OUT, or output/benchmark)
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-${OUT:-$root/output/benchmark}}
python=${PYTHON:-python3}

# the repository root is the package `headforcing`, whatever the folder is called
links=$(mktemp -d)
trap 'rm -rf "$links"' EXIT
ln -s "$root" "$links/headforcing"
export PYTHONPATH="$links${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

mkdir -p "$out"
status=0
step() { # limit in seconds, then the command's arguments
    limit=$1
    shift
    timeout "$limit" "$python" "$root/tests/benchmarks/run.py" --preset gpu --out "$out" "$@" 2>&1 | tee -a "$out/log.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
}

step 380 --rows B3,B1,V1,B5,W21,V4,B2,V2,V3,W12,W8,B4
step 190 --scaling
exit $status
