# A training script as a SLURM job that queues again. Scripts source it in place of arguments.sh.
# shellcheck shell=bash

source "$(dirname "${BASH_SOURCE[0]}")/../arguments.sh"
[[ ${SLURM_JOB_ID:-} ]] || fail "this is no SLURM job; start it by: sbatch scripts/slurm/${0##*/} ..."

run_job() { # script, beginning of the default of RESULTS_DIR, arguments of the script
    # SLURM sends USR1 to this shell when time runs out. The shell cannot tell that from statuses: torchrun ends with 1
    # whatever the status of its processes. A job that somebody cancels gets TERM, and must not queue again.
    local out_of_time='' started first_node status=0
    # scancel signals the steps that srun started, and neither this shell nor the scoring under it.
    trap 'out_of_time=1; scancel --signal=TERM "$SLURM_JOB_ID" || true' USR1
    export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240 # seconds that torchrun gives the training to save its checkpoint

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
