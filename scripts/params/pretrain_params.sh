# Presets for pretraining, to be sourced. A function prints the arguments of run_pretraining.sh, which are also those of
# run_pretraining_phase1.sh and run_pretraining_phase2.sh:
#
#   bash scripts/run_pretraining.sh $(source scripts/params/pretrain_params.sh && dgxa100_8gpu_bf16)
# shellcheck shell=bash

_preset() { # define the function: its name, then the columns below
    eval "$1() { echo $4 $5 5e-3 4e-3 $3 true $2 2166 200 95040 7560 100 $6 $7 configs/config.json; }"
}

# Batches of 64,000 examples of 128 tokens, then of 30,720 of 512, on all machines.
#       name              NUM_GPUS PRECISION BATCH_PHASE1 BATCH_PHASE2 ACCUMULATION_PHASE1 ACCUMULATION_PHASE2
_preset dgxa100_8gpu_bf16 8 bf16 200 32 40  120
_preset dgxa100_8gpu_tf32 8 tf32 100 16 80  240
# Not of the published recipe: the same batches on newer machines.
_preset h100_8gpu_bf16    8 bf16 200 32 40  120
_preset h200_1gpu_bf16    1 bf16 400 64 160 480

# Two minutes on a laptop, to see that everything runs: a tiny model on the synthetic corpus of the quickstart.
cpu_smoke() {
    echo 16 8 2e-2 1e-2 fp32 true 0 30 5 300 50 50 1 1 configs/config_tiny.json --data_dir data/sample --num_workers 0 \
        --dropout 0 --attention_dropout 0 --val_check_interval 0.25
}

# An hour on two CPU cores, for scripts/pretrain_small.sh: a model of 10 M parameters. It trains for less than an epoch, so there
# is no dropout. Batches are small, sentences stay in order and tokens are deleted, so that it learns to copy from its 1,000th
# step on.
cpu_small() {
    echo 8 8 1e-3 5e-4 fp32 true 0 200 30 4500 100 500 1 1 configs/config_small.json --optimizer adamw \
        --gradient_clip_val 1 --dropout 0 --attention_dropout 0 --mlm_probability 0 \
        --permute_sentence_ratio 0 --token_delete_ratio 0.3 --n_val 256 --val_check_interval 0.2
}
