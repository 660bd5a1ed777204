# Presets for CNN-DM, to be sourced. A function prints the arguments of run_summarization.sh; the function with
# `_eval` at the end of its name prints the arguments of run_eval_summarization.sh that follow the checkpoint:
#
#   bash scripts/run_summarization.sh $(source scripts/params/cnn_dm_params.sh && dgxa100_8gpu_fp16)
#   bash scripts/run_eval_summarization.sh CKPT $(source scripts/params/cnn_dm_params.sh && dgxa100_8gpu_fp16_eval)
# shellcheck shell=bash

_preset() { # define both functions: their name, then the columns below
    eval "$1() { echo data/cnn_dm/ configs/config.json ${*:2:7} 1024 142 4 ${*:9}; }"
    eval "$1_eval() { echo ${10} $2 $6 4 1024 142 data/cnn_dm/ configs/config.json; }"
}

#       name              NUM_GPU LR BS ACCUM PREC TRAIN_STEPS WARMUP_STEPS EVAL_BS PRED_BS VAL_CHECK_INTERVAL
_preset dgxa100_8gpu_fp16  8 1.25e-4 40 1 fp16 2000  50  128 128 0.3
_preset dgxa100_8gpu_tf32  8 1.25e-4 24 1 tf32 3333  50  128 64  0.3
_preset dgx2_16gpu_fp16   16 1e-4    14 1 fp16 3500  100 128 96  0.3
_preset dgx2_16gpu_fp32   16 7e-5    8  1 fp32 6125  150 96  32  0.3
_preset dgx1_8gpu_fp16     8 5.5e-5  14 1 fp16 7000  150 128 96  0.3
_preset dgx1_8gpu_fp32     8 5.5e-5  8  1 fp32 12250 150 96  32  0.3
_preset dgxa100_8gpu_bf16  8 1.25e-4 40 1 bf16 2000  50  128 128 0.3
# Not of the published recipe: the A100 recipe's global batch of 320 on newer machines, in bf16.
_preset h100_8gpu_bf16     8 1.25e-4 40 1 bf16 2000  50  128 128 0.3
_preset h200_1gpu_bf16     1 1.25e-4 40 8 bf16 2000  50  128 128 0.3

# A minute on a laptop, to see that everything runs: the tiny model from scratch, on the synthetic corpus of the quickstart.
# The options suit that; the values of the recipe suit the fine-tuning of a large model.
cpu_smoke() {
    echo data/sample configs/config_tiny.json 0 2e-3 16 1 fp32 600 60 160 64 4 64 64 1.0 100 --model_name_or_path scratch \
        --tokenizer data/sample/tokenizer --no_freeze_embeds --lr_scheduler linear --label_smoothing 0 --weight_decay 0.01 \
        --dropout 0 --attention_dropout 0 --gradient_clip_val 1 --num_workers 0 --log_every_n_steps 100
}
cpu_smoke_eval() { echo 64 0 fp32 4 160 64 data/sample configs/config_tiny.json; }
