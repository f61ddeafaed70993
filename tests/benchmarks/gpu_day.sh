#!/usr/bin/env bash
# The first hours with a GPU, in six parts, each under eight minutes and independent of the others:
#
#   check    whether every kernel and every attention backend computes what it should; one layer's attention
#   rows     a block of video by the rows of the benchmark that are compared
#   more     a block of video by its other rows: fp8, streams, torch.compile, other windows
#   profile  where a block's time goes, kernel by kernel; the VAE
#   video    whole videos, with and without encoding; what waits for the GPU
#   rest     a late block beside an early one; linear layers in fp8
#
#   tests/benchmarks/gpu_day.sh [--dry] [FOLDER [PART ...]]      (default: $OUT, or output/gpu_day; all parts)
#
# --dry runs everything on a tiny model on the CPU. Needs torch, triton, numpy and safetensors, and for triton's kernels a
# C compiler and Python's header files; what needs more says so.
# Results are written after every measurement, so a run that is cut off still reports. Nothing is installed.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
preset=gpu
[ "${1:-}" = "--dry" ] && { preset=dry; shift; }
out=${1:-${OUT:-$root/output/gpu_day}}
[ $# -gt 0 ] && shift
python=${PYTHON:-python3}
[ $# -gt 0 ] || set -- check rows more profile video rest

# the repository root is the package `headforcing`, whatever the folder is called
links=$(mktemp -d)
trap 'rm -rf "$links"' EXIT
ln -s "$root" "$links/headforcing"
export PYTHONPATH="$links${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

mkdir -p "$out"
status=0
if [ $preset = gpu ]; then
    header="$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"
    [ -f "$header" ] || echo "no $header: Triton cannot compile, rows with its kernels will have no number"
    command -v "${CC:-cc}" >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null ||
        echo "no C compiler: Triton cannot compile, rows with its kernels will have no number"
fi
for part in "$@"; do
    echo "== $part"
    timeout 480 "$python" "$root/tests/benchmarks/run.py" "$part" --preset $preset --blocks 12 --apart --out "$out" 2>&1 |
        tee -a "$out/log.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    if [ "$part" = check ] && [ $preset = gpu ] && "$python" -c "import pytest" 2>/dev/null; then
        timeout 240 "$python" -m pytest -q "$root/tests/engine/test_gpu.py" "$root/tests/engine/test_cuda_graph.py" \
            "$root/tests/engine/test_kernels.py" 2>&1 | tee -a "$out/log.txt"
        [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    fi
done
exit $status
