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
#   call_1   correct, in less than six minutes
#   call_2   what has changed in speed, in less than six minutes: the VAE, rows B3, G, F8, B6 and C, whole videos
#
#   tests/benchmarks/gpu_day.sh [--dry] [--into FILE.tgz] [FOLDER [PART ...]]
#                                            (default: $OUT, or output/gpu_day; the first eight parts)
#
# In half an hour fit: sanitizer first check profile; then: rows video more; then: rest comfy.
# In two calls, if few files come back: `--into $OUT/1.tgz work/1 call_1`, then `--into $OUT/2.tgz work/2 call_2`.
# --into packs the folder into one file every ten seconds and at the end, so a call that is cut off still reports.
# --dry runs everything on a tiny model on the CPU. Needs torch, triton, numpy and safetensors, and for triton's kernels a
# C compiler and Python's header files; what needs more says so. Wheels in .whl, which git may ignore, are installed into a
# folder of the run; for videos PyAV (`python3 -m pip download --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64
# --python-version 3.12 -d .whl av`). If no more than 64 MiB can be sent, leave out docs/images and
# tests/golden/peers, livetalk and longlive2.
# Results are written after every measurement.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
preset=gpu
blocks=12
apart=--apart
dry=
[ -n "${HEADFORCING_TOGETHER:-}" ] && apart=--together
into=
[ "${1:-}" = "--dry" ] && { preset=dry; blocks=2; apart=; dry=--dry; shift; }
[ "${1:-}" = "--into" ] && { into=$2; shift 2; }
out=${1:-${OUT:-$root/output/gpu_day}}
[ $# -gt 0 ] && shift
python=${PYTHON:-python3}
[ $# -gt 0 ] || set -- sanitizer first check profile rows video more rest

# the repository root is the package `headforcing`, whatever the folder is called
links=$(mktemp -d)
packing=
finish() {
    [ -z "$packing" ] || kill "$packing" 2>/dev/null
    [ -z "$into" ] || { pack; rm -f "$into".part*; }
    rm -rf "$links"
}
pack() { # the results as one file, which is whole at any time
    part_file=$into.part$BASHPID
    tar czf "$part_file" --exclude cache -C "$out" . 2>/dev/null
    mv "$part_file" "$into"
}
trap finish EXIT
trap 'exit 1' TERM INT
ln -s "$root" "$links/headforcing"
export PYTHONPATH="$links${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
if ls "$root"/.whl/*.whl >/dev/null 2>&1 && [ -z "${HEADFORCING_WHEELS:-}" ]; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$links/site" "$root"/.whl/*.whl &&
        export PYTHONPATH="$PYTHONPATH:$links/site" HEADFORCING_WHEELS=installed
fi

mkdir -p "$out"
if [ -n "$into" ]; then
    mkdir -p "$(dirname "$into")"
    (while sleep 10; do pack; done) >/dev/null 2>&1 &
    packing=$!
fi
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

short() { # SECONDS PART [OPTION ...]: a part that ends by then, in one process
    seconds=$1
    part=$2
    shift 2
    timeout $((seconds + 10)) "$python" "$root/tests/benchmarks/run.py" "$part" --preset $preset --together --seconds "$seconds" \
        --out "$out" "$@" 2>&1 | tee -a "$out/log.txt"
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
        XDG_CACHE_HOME="$out/$one/cache" timeout "${limit:-480}" bash "$0" $dry "$out/$one" "$one" >"$out/$one/said.txt" 2>&1 &
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
        together first sanitizer tests ;;
    call_1)
        limit=330 together first sanitizer tests ;;
    call_2)
        short 60 profile
        short 80 rows --rows B3,G,F8,B6 --blocks $((blocks / 2))
        short 140 video
        short 25 more --rows C --blocks $((blocks / 4 + 1)) ;;
    *)
        benchmark "$part"
        [ "$part" = check ] && [ $preset = gpu ] && tests ;;
    esac
done
exit $status
