#!/usr/bin/env bash
# The paper's comparisons within a time limit: research/comparisons.sh OUT [ASSETS]
#
# Every variant is trained from scratch on the same number of samples and scored on held-back scenes. Costs are
# measured first, alone. OUT gets NAME.json and NAME.safetensors as soon as a variant is finished, costs.json, and
# a log of each. Start it again to go on: what is finished is kept, what was stopped goes on from WORK.
#
#   LIMIT    seconds for everything (480)                JOBS    variants at a time (3)
#   SAMPLES  training samples per variant (3600)         SIZE    of training images ("320 256"), BATCH (8)
#   WORK     checkpoints (OUT/work)                      EXTRA   more options of python -m gbinet_research
#   PYTHON   interpreter (python3)                       COSTS   0 = omit the costs
# Afterwards, anywhere (no GPU needed; OUT as it is):
#   python -m gbinet_research all --parts cloud pages --out OUT
#   python -m gbinet_research docs --out OUT
set -u
out=$(realpath -m "$1")
assets=${2:+$(realpath "$2")}
cd "$(dirname "$0")/.." || exit 1
limit=${LIMIT:-480} jobs=${JOBS:-3} python=${PYTHON:-python3}
read -r width height <<< "${SIZE:-320 256}"
work=${WORK:-$out/work}
mkdir -p "$out" "$work"
export PYTHONPATH=src:research${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
reserve=40 # seconds kept for scoring after training
options="--out $out --work $work --samples ${SAMPLES:-3600} --batch-size ${BATCH:-8}"
options="$options --width $width --height $height ${assets:+--assets $assets} ${EXTRA:-}"

costs() { # name of the log, variants
  local name=$1
  shift
  # shellcheck disable=SC2086  # options are words
  timeout 120 "$python" -m gbinet_research all --parts cost --variants "$@" $options > "$out/$name.log" 2>&1
  echo "$name: exit $?, $SECONDS s"
}

variant() { # name
  local left=$((limit - reserve - SECONDS))
  if [ "$left" -lt 20 ]; then
    echo "$1: no time left"
    return
  fi
  local minutes
  minutes=$(printf '%d.%02d' $((left / 60)) $((left % 60 * 100 / 60)))
  # shellcheck disable=SC2086
  "$python" -m gbinet_research all --parts train --variants "$1" --minutes "$minutes" $options > "$out/$1.log" 2>&1
  echo "$1: exit $?, $SECONDS s, $(tail -n 1 "$out/$1.log")"
}

if [ "${COSTS:-1}" = 1 ]; then # in two processes: an error on the GPU in one does not lose the other
  costs costs-binary binet gbinet gbinet-6 gbinet-accumulate gbinet-per-stage
  costs costs-dense dense-linear coarse-to-fine
fi
# The most telling first; the last one has the gradients of gbinet itself.
for name in gbinet binet coarse-to-fine dense-linear gbinet-6 gbinet-per-stage gbinet-accumulate; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  variant "$name" &
done
wait
# shellcheck disable=SC2086
"$python" -m gbinet_research all --parts pages $options > "$out/pages.log" 2>&1
cat "$out"/strategies.md "$out"/bins.md "$out"/stages.md "$out"/updates.md 2> /dev/null
