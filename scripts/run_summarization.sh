#!/usr/bin/env bash
# Fine-tune BART on a data directory, then score the best checkpoint on its test split with beam search.
#
#   bash scripts/run_summarization.sh <DATA_DIR> <CONFIG_PATH> <NUM_GPU> <LR> <BS> <ACCUM> <PREC> <TRAIN_STEPS>
#       <WARMUP_STEPS> <MAX_SOURCE_LEN> <MAX_TARGET_LEN> <EVAL_BEAMS> <EVAL_BS> <PRED_BS> <VAL_CHECK_INTERVAL>
#       <PATIENCE> [--any_option_of_finetune.py ...]
#
# Values may be left off from the right; a preset of scripts/params/ supplies them all. Everything from the first
# argument that starts with "--" goes to finetune.py, behind what is fixed here, so that it wins.
# Read from the environment: SEED (default 42); RESULTS_DIR (default results/bart_pyt_<stamp>), which an interrupted run
# takes up again with --resume_from_checkpoint last; LAUNCH (default python), the words that start finetune.py, for
# example "torchrun --nproc_per_node=8 --numa-binding=node"; SCORE (default 1), where 0 leaves off the scoring.
# NUM_GPU counts the GPUs of one machine.
set -euo pipefail

positional=()
while (($# > 0)) && [[ $1 != --* ]]; do
    positional+=("$1")
    shift
done
if ((${#positional[@]} > 16)); then
    echo "run_summarization.sh: error: ${#positional[@]} positional values, at most 16 are known; options start with --" >&2
    exit 2
fi
DATA_DIR=${positional[0]:-data/cnn_dm/}
CONFIG_PATH=${positional[1]:-configs/config.json}
NUM_GPU=${positional[2]:-8}
LR=${positional[3]:-1e-4}
BS=${positional[4]:-24}
ACCUM=${positional[5]:-1}
PREC=${positional[6]:-fp16}
TRAIN_STEPS=${positional[7]:-20000}
WARMUP_STEPS=${positional[8]:-500}
MAX_SOURCE_LEN=${positional[9]:-1024}
MAX_TARGET_LEN=${positional[10]:-142}
EVAL_BEAMS=${positional[11]:-4}
EVAL_BS=${positional[12]:-128}
PRED_BS=${positional[13]:-64}
VAL_CHECK_INTERVAL=${positional[14]:-0.3}
PATIENCE=${positional[15]:-2}

for argument in "$@"; do # what the evaluation behind the training would not learn of
    case $argument in
    --data_dir* | --config_path* | --output_dir* | --gpus*)
        echo "run_summarization.sh: error: $argument; give it by its place, and the output directory as RESULTS_DIR" >&2
        exit 2
        ;;
    esac
done

case $PREC in
fp16 | bf16 | tf32) precision=("--$PREC") ;;
fp32) precision=() ;;
*)
    echo "run_summarization.sh: error: PREC is '$PREC'; allowed: fp16, bf16, tf32, fp32" >&2
    exit 2
    ;;
esac

RESULTS_DIR=${RESULTS_DIR:-results/bart_pyt_$(date +%y%m%d_%H%M%S)}
export RESULTS_DIR
read -ra launch <<<"${LAUNCH:-python}"

"${launch[@]}" finetune.py \
    --data_dir "$DATA_DIR" \
    --config_path "$CONFIG_PATH" \
    --output_dir "$RESULTS_DIR" \
    --do_train \
    --gpus "$NUM_GPU" \
    --learning_rate "$LR" \
    --train_batch_size "$BS" \
    --gradient_accumulation_steps "$ACCUM" \
    ${precision[@]+"${precision[@]}"} \
    --amp_level O1 \
    --max_steps "$TRAIN_STEPS" \
    --warmup_steps "$WARMUP_STEPS" \
    --lr_scheduler polynomial \
    --max_source_length "$MAX_SOURCE_LEN" \
    --max_target_length "$MAX_TARGET_LEN" \
    --val_max_target_length "$MAX_TARGET_LEN" \
    --test_max_target_length "$MAX_TARGET_LEN" \
    --label_smoothing 0.1 \
    --weight_decay 0.1 \
    --dropout 0.1 \
    --attention_dropout 0.1 \
    --gradient_clip_val 0.1 \
    --freeze_embeds \
    --sortish_sampler \
    --n_val -1 \
    --num_sanity_val_steps 0 \
    --eval_beams 0 \
    --eval_batch_size "$EVAL_BS" \
    --val_check_interval "$VAL_CHECK_INTERVAL" \
    --early_stopping_patience "$PATIENCE" \
    --seed "${SEED:-42}" \
    "$@"

if [[ ${SCORE:-1} == 0 ]]; then
    exit
fi
bash "$(dirname "$0")/run_eval_summarization.sh" "$RESULTS_DIR/export" "$PRED_BS" "$NUM_GPU" "$PREC" "$EVAL_BEAMS" \
    "$MAX_SOURCE_LEN" "$MAX_TARGET_LEN" "$DATA_DIR" "$CONFIG_PATH"
