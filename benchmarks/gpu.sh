#!/usr/bin/env bash
# Everything that can only be measured on a CUDA device, one after the other: benchmarks/gpu.sh OUT [ASSETS]
# A failed part does not stop the others; each leaves its JSON and its log in OUT. On a fresh machine most of the
# time goes into compiling kernels: carry the folder TRITON_CACHE_DIR over from an earlier run where you can.
set -u
cd "$(dirname "$0")/.."
out=$1
assets=${2:+--assets $2}
mkdir -p "$out"
export PYTHONPATH=src PYTHONUNBUFFERED=1

part() { # name, seconds it may take, command
  local name=$1 limit=$2
  shift 2
  local begin=$SECONDS
  timeout "$limit" "$@" > "$out/$name.log" 2>&1
  echo "$name: exit $?, $((SECONDS - begin)) s"
}

part kernels-tests 200 bash -c "python3 -m pytest -q -p no:cacheprovider --confcutdir=tests/ops tests/ops/*_triton.py &&
  python3 -m pytest -q -p no:cacheprovider --confcutdir=tests/inference tests/inference/test_prepare_triton.py"
part fusion-tests 120 python3 -m pytest -q -p no:cacheprovider tests/fusion/test_consistency_triton.py
part inference 120 python3 benchmarks/inference.py --device cuda --out "$out/inference.json"
part kernels 120 python3 benchmarks/kernels.py --out "$out/kernels.json"
part memory 120 python3 benchmarks/memory.py --out "$out/memory.json"
part scene 120 python3 benchmarks/scene.py --out "$out/scene.json"
# shellcheck disable=SC2086  # no assets: no argument
part gate 200 python3 benchmarks/gate.py $assets --out "$out/gate.json"
# shellcheck disable=SC2086  # no assets: no argument
part rendering 120 python3 benchmarks/rendering.py --device cuda $assets --out "$out/rendering.json"
# shellcheck disable=SC2086
part training 200 python3 benchmarks/training.py $assets --out "$out/training.json"
part fusion 120 python3 benchmarks/fusion.py --views 49 --width 1600 --height 1152 --device cuda --out "$out/fusion.json"
part reconstruct 200 python3 benchmarks/reconstruct.py --device cuda --views 49 --size 1600x1152 --out "$out/reconstruct.json"
