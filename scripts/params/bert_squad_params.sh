# Presets of bert/run_squad.sh, NVIDIA's values for BERT-large, to be sourced:
#
#   bash scripts/bert/run_squad.sh $(source scripts/params/bert_squad_params.sh && dgxa100-80g_8gpu_fp16)
# shellcheck shell=bash

_preset() { # define the function: its name, NUM_GPU, PRECISION, BATCH_SIZE
    eval "$1() { echo google-bert/bert-large-uncased 2.0 $4 4.6e-5 0.2 $3 $2 1 hub:rajpurkar/squad; }"
}

_preset dgxa100-80g_8gpu_fp16 8 fp16 32
_preset dgxa100-80g_8gpu_tf32 8 tf32 32
_preset dgx1-32g_8gpu_fp16    8 fp16 32
_preset dgx1-32g_8gpu_fp32    8 fp32 16
# Ours.
_preset h100_8gpu_bf16        8 bf16 32
_preset h200_1gpu_bf16        1 bf16 256
