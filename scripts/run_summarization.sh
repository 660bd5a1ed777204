#!/usr/bin/env bash
# Fine-tune BART on a data directory, then score the best checkpoint on its test split with beam search.
#
#   bash scripts/run_summarization.sh <DATA_DIR> <CONFIG_PATH> <NUM_GPU> <LR> <BS> <ACCUM> <PREC> <TRAIN_STEPS>
#       <WARMUP_STEPS> <MAX_SOURCE_LEN> <MAX_TARGET_LEN> <EVAL_BEAMS> <EVAL_BS> <PRED_BS> <VAL_CHECK_INTERVAL>
#       <PATIENCE> [--any_option_of_finetune.py ...]
#
# A preset of scripts/params/ supplies all values: $(source scripts/params/xsum_params.sh && dgxa100_8gpu_fp16). If you give
# values by hand, all but the first may be left off from the right. NUM_GPU counts the GPUs of one machine; 0 is the CPU.
# DATA_DIR data/sample, the synthetic corpus of the preset cpu_smoke, is written if it is missing.
# The first argument that starts with "--" and everything after it go to finetune.py (python finetune.py --help), and win over
# the values given here; those of data, architecture, GPUs, precision and lengths are refused, which their places give.
# The environment may set SEED (default 42); RESULTS_DIR (default results/bart_pyt_<stamp>), in which
# --resume_from_checkpoint last goes on with an interrupted run; LAUNCH (default python), the words that start finetune.py,
# such as "torchrun --nproc_per_node=8 --numa-binding=node"; SCORE (default 1): 0 leaves off the scoring.
set -euo pipefail
source "$(dirname "$0")/task.sh"

read_arguments DATA_DIR=data/cnn_dm/ CONFIG_PATH=configs/config.json NUM_GPU=8 LR=1e-4 BS=24 ACCUM=1 PREC=fp16 \
    TRAIN_STEPS=20000 WARMUP_STEPS=500 MAX_SOURCE_LEN=1024 MAX_TARGET_LEN=142 EVAL_BEAMS=4 EVAL_BS=128 PRED_BS=64 \
    VAL_CHECK_INTERVAL=0.3 PATIENCE=2 -- "$@"
((given > 0)) || fail_preset xsum_params.sh DATA_DIR
RESULTS_DIR=${RESULTS_DIR:-results/bart_pyt_$(date +%y%m%d_%H%M%S)}
training=(--amp_level O1 --freeze_embeds --max_target_length "$MAX_TARGET_LEN" --val_max_target_length "$MAX_TARGET_LEN"
    --test_max_target_length "$MAX_TARGET_LEN" --eval_max_gen_length "$MAX_TARGET_LEN" --label_smoothing 0.1
    --weight_decay 0.1 --gradient_clip_val 0.1 --eval_beams 0 --pred_beams "$EVAL_BEAMS" --pred_batch_size "$PRED_BS"
    --val_check_interval "$VAL_CHECK_INTERVAL" --early_stopping_patience "$PATIENCE")
train_and_score summarization test
