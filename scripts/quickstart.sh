#!/usr/bin/env bash
# From nothing to a trained, scored summariser in minutes on two CPU cores: environment, a sample corpus of synthetic
# newswire, a vocabulary, configs/config_tiny.json trained from scratch, beam search over the test set, ROUGE.
#
#   bash scripts/quickstart.sh
#
# Phases that an earlier run has finished are skipped. PYTHON names the interpreter of a new environment. Only pip needs a
# network. The hyperparameters are those of the preset cpu_smoke, with more steps. Results lie in results/quickstart.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"
(($# == 0)) || fail "$1 is an argument too many; it takes none"
cd "$root"

phase() { # prints the name of a phase, after the time so far
    echo
    echo "[$((SECONDS / 60)):$(printf %02d $((SECONDS % 60)))] $1"
}

phase "environment"
source scripts/setup_env.sh requirements.txt
installed=$SECONDS

phase "sample corpus and vocabulary"
make_sample data/sample

source scripts/params/cnn_dm_params.sh
export RESULTS_DIR=results/quickstart
if [[ ! -s $RESULTS_DIR/train_summary.json ]]; then # written after the export
    phase "training, then scoring with beam search"
    rm -rf "$RESULTS_DIR" # of an interrupted run
    # shellcheck disable=SC2046 # a preset is many words
    run bash scripts/run_summarization.sh $(cpu_smoke) --max_steps 1500 --warmup_steps 150
elif [[ ! -s $RESULTS_DIR/test_scores.json || ! $RESULTS_DIR/report.html -nt $RESULTS_DIR/test_scores.json ]]; then
    phase "scoring with beam search" # which writes the report last
    # shellcheck disable=SC2046
    run bash scripts/run_eval_summarization.sh "$RESULTS_DIR/export" $(cpu_smoke_eval)
fi

phase "results"
echo "Curves, scores and every article with its summary, for a browser: $RESULTS_DIR/report.html"
echo
echo "$((SECONDS - installed)) seconds, installation apart"
