# Presets for pretraining BERT, to be sourced. A function prints the arguments of bert/run_pretraining.sh:
#
#   bash scripts/bert/run_pretraining.sh $(source scripts/params/bert_pretrain_params.sh && dgxa100-80g_8gpu_fp16)
# shellcheck shell=bash

_preset() { # define the function: its name, then the columns below
    eval "$1() { echo $4 6e-3 $3 $2 0.2843 7038 200 false true true $6 42 bert_lamb_pretraining true true \
        $5 4e-3 0.128 1563 $7; }"
}

# NVIDIA's: batches of 65,536 pairs of 128 tokens, then of 32,768 of 512, on all GPUs.
#       name                  NUM_GPUS PRECISION BATCH BATCH_PHASE2 ACCUMULATION ACCUMULATION_PHASE2
_preset dgxa100-80g_8gpu_fp16 8 fp16 8192  4096  32  128
_preset dgxa100-80g_8gpu_tf32 8 tf32 8192  4096  64  256
_preset dgx1-32g_8gpu_fp16    8 fp16 8192  4096  64  256
_preset dgx1-32g_8gpu_fp32    8 fp32 8192  4096  128 512
# Ours: the same batches on newer machines.
_preset h100_8gpu_bf16        8 bf16 8192  4096  32  128
_preset h200_1gpu_bf16        1 bf16 65536 32768 256 1024

# A minute on a laptop, to see that everything runs: a tiny model on the synthetic corpus of the quickstart.
cpu_smoke() {
    echo 16 2e-3 fp32 0 0.1 200 50 false true true 1 42 bert_smoke true true 8 1e-3 0.1 20 1 \
        data/sample/pretrain_mlm_nsp_128 data/sample/pretrain_mlm_nsp_512 . None . 1 1 0 1 64 dynamic configs/bert_tiny.json \
        --optimizer adamw --lr_scheduler polynomial --dropout 0 --attention_dropout 0 --val_check_interval 0.25
}
