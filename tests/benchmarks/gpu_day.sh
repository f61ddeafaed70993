#!/usr/bin/env bash
# The first hours with a GPU, in parts, each under eight minutes and independent of the others, in the order of what they tell:
#
#   sanitizer every kernel under compute-sanitizer, where it is installed: what is read beyond the end of a tensor
#   first    the same bits twice, in another process and resumed; the command line with every flag
#   check    whether every kernel and every attention backend computes what it should; one layer's attention
#   profile  where a block's time goes, kernel by kernel; the VAE
#   rows     a block of video by the rows of the benchmark that are compared
#   video    whole videos, with and without encoding; what waits for the GPU
#   more     a block of video by its other rows: fp8, torch.compile, other windows
#   rest     a late block beside an early one; linear layers in fp8
#   comfy    the sampler in ComfyUI's own process, with and without dynamic VRAM; COMFYUI names a folder of ComfyUI
#
#   tests/benchmarks/gpu_day.sh [--dry] [FOLDER [PART ...]]      (default: $OUT, or output/gpu_day; all parts but comfy)
#
# In half an hour fit: sanitizer first check profile; then: rows video more; then: rest comfy.
# --dry runs everything on a tiny model on the CPU. Needs torch, triton, numpy and safetensors, and for triton's kernels a
# C compiler and Python's header files; what needs more says so.
# Results are written after every measurement, so a run that is cut off still reports. Nothing is installed.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
preset=gpu
blocks=12
apart=--apart
[ "${1:-}" = "--dry" ] && { preset=dry; blocks=2; apart=; shift; }
out=${1:-${OUT:-$root/output/gpu_day}}
[ $# -gt 0 ] && shift
python=${PYTHON:-python3}
[ $# -gt 0 ] || set -- sanitizer first check profile rows video more rest

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
benchmark() { # PART [COMMAND ...]: the part, run by a command
    part=$1
    shift
    timeout 480 "$@" "$python" "$root/tests/benchmarks/run.py" "$part" --preset $preset --blocks $blocks $apart --out "$out" 2>&1 |
        tee -a "$out/log.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
}

tests() { # FILE ...: tests that need a GPU, where pytest is installed
    "$python" -c "import pytest" 2>/dev/null || { echo "pytest is not installed: $* left out"; return; }
    timeout 240 "$python" -m pytest -q -m "not slow" "$@" 2>&1 | tee -a "$out/log.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
}

for part in "$@"; do
    echo "== $part"
    case $part in
    sanitizer)
        if command -v compute-sanitizer >/dev/null; then
            # memory that PyTorch keeps for later would hide what is read beyond a tensor
            export PYTORCH_NO_CUDA_MEMORY_CACHING=1
            benchmark sanitizer compute-sanitizer --tool memcheck --target-processes all --error-exitcode 9
            unset PYTORCH_NO_CUDA_MEMORY_CACHING
        else
            echo "compute-sanitizer is not installed: the kernels run without it"
            benchmark sanitizer
        fi ;;
    comfy)
        for flag in --disable-dynamic-vram --enable-dynamic-vram; do
            timeout 240 "$python" "$root/tests/benchmarks/in_comfyui.py" "${COMFYUI:-}" "$flag" 2>&1 | tee -a "$out/log.txt"
            [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
        done ;;
    *)
        benchmark "$part" ;;
    esac
    if [ "$part" = check ] && [ $preset = gpu ]; then
        tests "$root/tests/engine/test_gpu.py" "$root/tests/engine/test_cuda_graph.py" "$root/tests/engine/test_kernels.py"
    fi
done
exit $status
