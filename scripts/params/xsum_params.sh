# Presets for XSum, to be sourced. A function prints the arguments of run_summarization.sh; the function with
# `_eval` at the end of its name prints the arguments of run_eval_summarization.sh that follow the checkpoint:
#
#   bash scripts/run_summarization.sh $(source scripts/params/xsum_params.sh && dgxa100_8gpu_fp16)
#   bash scripts/run_eval_summarization.sh CKPT $(source scripts/params/xsum_params.sh && dgxa100_8gpu_fp16_eval)
# shellcheck shell=bash

_preset() { # define both functions: their name, then the columns below
    eval "$1() { echo data/xsum configs/config_xsum.json ${*:2:7} 1024 60 6 ${*:9}; }"
    eval "$1_eval() { echo ${10} $2 $6 6 1024 60 data/xsum configs/config_xsum.json; }"
}

#       name              NUM_GPU LR BS ACCUM PREC TRAIN_STEPS WARMUP_STEPS EVAL_BS PRED_BS VAL_CHECK_INTERVAL [PATIENCE]
_preset dgxa100_8gpu_fp16  8 1.25e-4 40 1 fp16 2000  50  128 128 0.1
_preset dgxa100_8gpu_tf32  8 1.25e-4 24 1 tf32 3333  50  128 64  0.1
_preset dgx2_16gpu_fp16   16 1e-4    14 1 fp16 3500  100 128 96  0.3 1
_preset dgx2_16gpu_fp32   16 1.25e-4 8  1 fp32 6125  150 96  32  0.3 1
_preset dgx1_8gpu_fp16     8 7e-5    14 1 fp16 7000  200 128 64  0.3 1
dgx1_8gpu_fp16_eval() { echo 96 8 fp16 6 1024 60 data/xsum configs/config_xsum.json; } # another batch, as published
_preset dgx1_8gpu_fp32     8 7e-5    8  1 fp32 12250 200 96  32  0.3 1
_preset dgxa100_8gpu_bf16  8 1.25e-4 40 1 bf16 2000  50  128 128 0.1
# Not of the published recipe: the A100 recipe's global batch of 320 on newer machines, in bf16.
_preset h100_8gpu_bf16     8 1.25e-4 40 1 bf16 2000  50  128 128 0.1
_preset h200_1gpu_bf16     1 1.25e-4 40 8 bf16 2000  50  128 128 0.1

# A minute on a laptop: the presets of CNN-DM.
# shellcheck source=cnn_dm_params.sh
cpu_smoke() { (source "$(dirname "${BASH_SOURCE[0]}")/cnn_dm_params.sh" && cpu_smoke); }
cpu_smoke_eval() { (source "$(dirname "${BASH_SOURCE[0]}")/cnn_dm_params.sh" && cpu_smoke_eval); }
