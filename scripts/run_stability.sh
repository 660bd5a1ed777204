#!/usr/bin/env bash
# Train and score with several seeds, then print mean, deviation and range of each score.
#
#   bash scripts/run_stability.sh <N> [SCRIPT] [<its arguments> ...]
#
# N counts the seeds: SEED (default 42), SEED + 1 and so on. SCRIPT is run_summarization.sh, which may be left off,
# run_glue.sh, run_tagging.sh, run_squad.sh or run_translation.sh. RESULTS_DIR (default results/stability_<stamp>) gets a
# folder seed_<n> for each run, and stability.txt. With the same RESULTS_DIR a killed command goes on.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

N=${1:-} SEED=${SEED:-42} script=run_summarization.sh
require_numbers 2 N
require_numbers 0 SEED
shift
if [[ ${1:-} == *.sh ]]; then
    script=${1##*scripts/}
    shift
fi
[[ $script =~ ^run_(summarization|glue|tagging|squad|translation)\.sh$ ]] || fail "SCRIPT is '$script', which --help does not name"
[[ " $*" != *" --seed"[\ =]* && ${SCORE:-1} != 0 ]] || fail "allowed: SEED, the first seed, in place of --seed, and no SCORE=0"
results=${RESULTS_DIR:-results/stability_$(date +%y%m%d_%H%M%S)}
find_python
folders=()
for ((seed = SEED; seed < SEED + N; seed++)); do
    folders+=("$results/seed_$seed")
    SEED=$seed RESULTS_DIR=$results/seed_$seed run bash "$root/scripts/$script" "$@" --resume_from_checkpoint last
done
python - "${folders[@]}" <<'END' | tee "$results/stability.txt"
import sys
from statistics import mean, stdev

from utils.evaluation.report.runs import ReportedRun, scores_of

runs = [ReportedRun(folder) for folder in sys.argv[1:]]
print(f"{'score':24}{'mean':>10}{'deviation':>10}{'least':>10}{'greatest':>10}")
for split, record in runs[0].scores.items():
    for name in scores_of(record):
        values = [run.scores[split][name] for run in runs]
        print(f"{f'{split} {name}':24}", *(f"{of(values):9.2f}" for of in (mean, stdev, min, max)))
END
