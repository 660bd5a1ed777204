#!/usr/bin/env bash
# Pretrains a small BART on a folder of text in about an hour on two CPU cores: a vocabulary of 16,000, shards of 128 and
# of 512 tokens, two phases of configs/config_small.json (10 M parameters), an export in Hub format.
#
#   bash scripts/pretrain_small.sh <TEXT_FOLDER> [--any_option_of_run_pretraining.py ...]
#
# TEXT_FOLDER holds what utils.corpora.make_shards reads; about 100 MB suit the steps of the preset cpu_small.
# The same command goes on after an interruption. Read from the environment: RESULTS_DIR (default results/pretrain_small),
# where data, both phases and phase_2/export lie; SEED.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

read_arguments TEXT_FOLDER= -- "$@"
[[ $TEXT_FOLDER ]] || fail "0 positional values; the folder with the text is expected"
export RESULTS_DIR=${RESULTS_DIR:-results/pretrain_small}
export DATA_DIR=$RESULTS_DIR/data
find_python
if [[ ! -s $DATA_DIR/tokenizer/tokenizer_config.json ]]; then
    run python -m utils.corpora.train_tokenizer --input "$TEXT_FOLDER" --output_dir "$DATA_DIR/tokenizer" --vocab_size 16000
fi
for length in 128 512; do
    run python -m utils.corpora.make_shards --input "$TEXT_FOLDER" --tokenizer "$DATA_DIR/tokenizer" \
        --output "$DATA_DIR/pretrain_lddl_$length" --sequence_length "$length"
done
source "$root/scripts/params/pretrain_params.sh"
# shellcheck disable=SC2046 # a preset is many words
exec bash "$root/scripts/run_pretraining.sh" $(cpu_small) ${options[@]+"${options[@]}"}
