#!/usr/bin/env bash
# Train and score with several seeds, then print mean, deviation and range of each score.
#
#   bash scripts/run_stability.sh <N> [SCRIPT] [<its arguments> ...]
#
# N counts the seeds: SEED (default 42), SEED + 1 and so on. SCRIPT is run_summarization.sh, which may be left off,
# run_glue.sh, run_tagging.sh, run_squad.sh or run_translation.sh; the remaining arguments are its own.
# Read from the environment: SEED; RESULTS_DIR (default results/stability_<stamp>), which gets a folder seed_<n> for each run
# and the table, stability.txt; and the variables of SCRIPT. With the same RESULTS_DIR a killed command goes on: it trains what is
# left, and scores all runs.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

(($# > 0)) || fail "0 values; the number of seeds is expected"
N=$1 SEED=${SEED:-42} script=run_summarization.sh
require_numbers 2 N
require_numbers 0 SEED
shift
if [[ ${1:-} == *.sh ]]; then
    script=${1#"$root/"}
    script=${script#scripts/}
    shift
    [[ $script =~ ^run_(summarization|glue|tagging|squad|translation)\.sh$ ]] ||
        fail "SCRIPT is '$script'; allowed: run_summarization.sh, run_glue.sh, run_tagging.sh, run_squad.sh, run_translation.sh"
fi
[[ " $*" != *" --seed"[\ =]* ]] || fail "--seed is set for each run; SEED in the environment is the first"
[[ ${SCORE:-1} != 0 ]] || fail "SCORE is 0; scores are what this compares"
results=${RESULTS_DIR:-results/stability_$(date +%y%m%d_%H%M%S)}
find_python
folders=()
for ((seed = SEED; seed < SEED + N; seed++)); do
    folder=$results/seed_$seed
    folders+=("$folder")
    echo "seed $seed"
    SEED=$seed RESULTS_DIR=$folder run bash "$root/scripts/$script" "$@" --resume_from_checkpoint last
done
python -m utils.evaluation.stability "${folders[@]}" | tee "$results/stability.txt"
