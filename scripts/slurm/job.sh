# A script that trains, as a SLURM job that queues again. To be sourced behind arguments.sh.
# shellcheck shell=bash

[[ ${SLURM_JOB_ID:-} ]] || fail "this is no SLURM job; start it by: sbatch scripts/slurm/${0##*/} ..."

run_job() { # script, beginning of the default of RESULTS_DIR, arguments of the script
    # USR1 comes to this shell alone, so that it knows that time ran out: torchrun ends with 1 whatever its processes end
    # with, and a job that somebody cancels gets TERM, like the training here, and must not queue again.
    local out_of_time='' started first_node status=0
    # scancel signals the steps that srun started, not this shell, nor the scoring under it.
    trap 'out_of_time=1 interrupted=1; scancel --signal=TERM "$SLURM_JOB_ID" || true' USR1
    export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240 # seconds that torchrun leaves the training to save its checkpoint

    # The same in every run of a job.
    export RESULTS_DIR=${RESULTS_DIR:-$2_$SLURM_JOB_ID}
    started=$(date +%s)

    read -r first_node < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    export LAUNCH="srun --ntasks-per-node=1 --cpu-bind=none ${TORCHRUN:-torchrun} --nnodes=$SLURM_JOB_NUM_NODES \
--nproc_per_node=$SLURM_GPUS_ON_NODE --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d \
--rdzv_endpoint=$first_node:$((20000 + SLURM_JOB_ID % 10000))"

    run bash "scripts/$1" "${@:3}" || status=$?

    if [[ $out_of_time ]] && ((status != 0)); then
        # Where nothing was saved, the next run would get no further either.
        if [[ $(find "$RESULTS_DIR" \( -name last.ckpt -o -name "rank*.jsonl" \) -newermt "@$started") ]]; then
            scontrol requeue "$SLURM_JOB_ID"
        else
            echo "${0##*/}: error: no checkpoint was written before time ran out; not queued again" >&2
        fi
    fi
    exit "$status"
}
