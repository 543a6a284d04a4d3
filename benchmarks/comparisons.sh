#!/usr/bin/env bash
# The paper's comparisons within a time limit: benchmarks/comparisons.sh OUT [ASSETS]
#
# Every variant is trained from scratch on the same number of samples and scored on held-back scenes. Costs are
# measured first, alone. OUT gets NAME.json and NAME.safetensors as soon as a variant is finished, costs.json, a log
# each. Start it again to go on: what is finished is kept, what was stopped goes on from WORK.
#
#   LIMIT    seconds for everything (480)      JOBS     variants at a time (3)
#   SAMPLES  training samples per variant (3600)        SIZE, BATCH  "320 256", 8
#   WORK     checkpoints (OUT/work)            EXTRA    more options of python -m gbinet.comparisons
# Afterwards, anywhere:
#   python -m gbinet.comparisons all --parts cloud pages --out OUT    # clouds and tables; no GPU needed
#   python -m gbinet.comparisons docs --out OUT --docs docs/results.md
set -u
out=$(realpath -m "$1")
assets=${2:+$(realpath "$2")}
cd "$(dirname "$0")/.."
limit=${LIMIT:-480} jobs=${JOBS:-3} samples=${SAMPLES:-3600} batch=${BATCH:-8} extra=${EXTRA:-}
read -r width height <<< "${SIZE:-320 256}"
work=${WORK:-$out/work}
python=${PYTHON:-python3}
mkdir -p "$out" "$work"
export PYTHONPATH=src PYTHONUNBUFFERED=1
reserve=40 # seconds that scoring takes after training

common="--out $out --work $work --samples $samples --batch-size $batch --width $width --height $height"
common="$common ${assets:+--assets $assets} $extra"
export out common limit reserve python

costs() { # name of the log, variants
  local name=$1
  shift
  # shellcheck disable=SC2086  # options are words
  timeout 120 "$python" -m gbinet.comparisons all --parts cost --variants "$@" $common > "$out/$name.log" 2>&1
  echo "$name: exit $?, $SECONDS s"
}

variant() { # name, seconds since the start
  local left=$((limit - reserve - $(date +%s) + began))
  if [ "$left" -lt 20 ]; then
    echo "$1: no time left"
    return
  fi
  local minutes
  minutes=$(awk "BEGIN { print $left / 60 }")
  # shellcheck disable=SC2086
  "$python" -m gbinet.comparisons all --parts train --variants "$1" --minutes "$minutes" $common \
    > "$out/$1.log" 2>&1
  echo "$1: exit $?, $(($(date +%s) - began)) s, $(tail -n 1 "$out/$1.log")"
}
began=$(date +%s)
export began
export -f variant

# Two processes: an error on the GPU in one group does not lose the other.
costs costs-binary binet gbinet gbinet-6 gbinet-accumulate gbinet-per-stage
costs costs-dense dense-linear coarse-to-fine
# The most telling first; of the last two, one has the gradients of gbinet itself.
printf '%s\n' gbinet binet coarse-to-fine dense-linear gbinet-6 gbinet-per-stage gbinet-accumulate |
  xargs -P "$jobs" -I{} bash -c 'variant {}'
# shellcheck disable=SC2086
"$python" -m gbinet.comparisons all --parts pages $common > "$out/pages.log" 2>&1
cat "$out"/strategies.md "$out"/bins.md "$out"/stages.md "$out"/updates.md 2> /dev/null
