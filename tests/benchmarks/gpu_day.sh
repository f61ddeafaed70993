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
#   tests    the tests that need a GPU, where pytest is installed; `check` ends with them
#   correct  sanitizer, first and tests at the same time: what needs no clock, in the time of the longest
#   comfy    the sampler in ComfyUI's own process, with and without dynamic VRAM; COMFYUI names a folder of ComfyUI,
#            COMFYUI_FLAGS further flags of it
#
#   tests/benchmarks/gpu_day.sh [--dry] [FOLDER [PART ...]]      (default: $OUT, or output/gpu_day; the first eight parts)
#
# In half an hour fit: sanitizer first check profile; then: rows video more; then: rest comfy.
# In a quarter of an hour: correct rows video, with HEADFORCING_TOGETHER=1 once correct has passed.
# --dry runs everything on a tiny model on the CPU. Needs torch, triton, numpy and safetensors, and for triton's kernels a
# C compiler and Python's header files; what needs more says so.
# Results are written after every measurement, so a run that is cut off still reports. Nothing is installed.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
preset=gpu
blocks=12
apart=--apart
dry=
[ -n "${HEADFORCING_TOGETHER:-}" ] && apart=--together
[ "${1:-}" = "--dry" ] && { preset=dry; blocks=2; apart=; dry=--dry; shift; }
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

tests() { # tests that need a GPU, where pytest is installed
    "$python" -c "import pytest" 2>/dev/null || { echo "pytest is not installed: no tests"; return; }
    files=()
    for file in gpu kernels; do files+=("$root/tests/engine/test_$file.py"); done
    timeout 240 "$python" -m pytest -q -m "not slow" "${files[@]}" 2>&1 | tee -a "$out/log.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
}

together() { # PART ...: at the same time, each with its results and cache folder in a folder of its own
    running=()
    for one in "$@"; do
        mkdir -p "$out/$one/cache"
        XDG_CACHE_HOME="$out/$one/cache" bash "$0" $dry "$out/$one" "$one" >"$out/$one/said.txt" 2>&1 &
        running+=($!)
    done
    for process in "${running[@]}"; do wait "$process" || status=1; done
    for one in "$@"; do tail -n 60 "$out/$one/said.txt"; done
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
            timeout 240 "$python" "$root/tests/benchmarks/in_comfyui.py" "${COMFYUI:-}" "$flag" ${COMFYUI_FLAGS:-} 2>&1 | tee -a "$out/log.txt"
            [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
        done ;;
    tests)
        tests ;;
    correct)
        together sanitizer first tests ;;
    *)
        benchmark "$part"
        [ "$part" = check ] && [ $preset = gpu ] && tests ;;
    esac
done
exit $status
