# The common parts of the scripts: --help, the place of the repository, Python, command lines, signals. Scripts source it
# without arguments, so that it sees theirs.
# shellcheck shell=bash
# shellcheck disable=SC2034 # the scripts read `options` and `precision`

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Processes that torchrun restarts must not find the addresses of dead ones.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

install="run: cd $root && source scripts/setup_env.sh requirements.txt"

fail() { # message
    echo "${0##*/}: error: $1" >&2
    exit 2
}

in_repository() { # prints a path, or its place in the repository where it is only there
    [[ $1 != */* || -e $1 || ! -e $root/$1 ]] || set -- "$root/$1"
    printf '%s\n' "$1"
}

[[ ${RESULTS_DIR:-} != *://* ]] ||
    fail "RESULTS_DIR is '$RESULTS_DIR'; allowed: a folder of this machine (--output_dir of the Python programs takes URLs)"

words=()
for word; do
    if [[ $word == --help || $word == -h ]]; then
        sed -n '2,${/^#/!q;/^#SBATCH/q;s/^# \{0,1\}//p;}' "$0"
        echo
        echo "Relative paths begin in the current folder; what is not there is looked for in the repository."
        exit
    fi
    words+=("$(in_repository "$word")")
done
set -- ${words[@]+"${words[@]}"}

# Put the environment that setup_env.sh made first on PATH, unless another is active. conda's base does not count, because
# it is active in every shell of conda's users. In an image the folder is mounted, and its environment is the host's.
find_python() {
    local python=${VENV:-$root/.venv}/bin/python
    if [[ ! ${BART_IMAGE:-} && ! ${VIRTUAL_ENV:-} && ${CONDA_DEFAULT_ENV:-base} == base && -x $python ]]; then
        PATH=$(cd "${python%/*}" && pwd):$PATH
    fi
    type -P python >/dev/null || fail "no python is on PATH; $install"
    # Modules are those of the repository, also where the current folder has some of the same names.
    export PYTHONSAFEPATH=1 PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
}

# Run a command, pass on each signal that would end this script, and return the command's status when it has ended.
#
# The command has a process group of its own, so that it gets Ctrl-C once, from here.
run() {
    local child='' caught='' status=0 signal
    for signal in HUP INT TERM; do
        # shellcheck disable=SC2064 # the signal is known now
        trap "caught=$signal; kill -$signal \$child 2>/dev/null || true" "$signal"
    done
    set -m
    "$@" </dev/null &
    child=$!
    set +m
    [[ ! $caught ]] || kill "-$caught" "$child" # it came before the command
    # A signal ends a wait, and its trap may outlast the command. The wait after the command's end tells the status.
    while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done
    wait "$child" || status=$?
    trap - HUP INT TERM
    if [[ $caught ]] && ((status == 0)); then
        status=$((128 + $(kill -l "$caught"))) # the script must not go on
    fi
    return "$status"
}

# Write the synthetic corpus, its topics, tags and questions, and its vocabulary to a folder, unless they are there.
make_sample() { # folder, type of the model (default bart)
    local tokenizer=$1/tokenizer type=()
    [[ ${2:-bart} == bart ]] || tokenizer=$1/$2_tokenizer type=(--model_type "$2")
    [[ -s $1/questions/test.jsonl ]] || run python -m utils.corpora.sample_corpus --output_dir "$1"
    [[ -s $tokenizer/tokenizer_config.json ]] || run python -m utils.corpora.train_tokenizer --data_dir "$1" \
        --output_dir "$tokenizer" --vocab_size 1600 ${type[@]+"${type[@]}"}
}

# Read the values in front of the first argument that starts with "--":
#
#   read_arguments NAME=DEFAULT ... -- "$@"
#
# Each value becomes the variable NAME, which is DEFAULT where the value is empty or missing. The remaining arguments
# become the array `options`, and `given` is the number of values that are not empty.
read_arguments() {
    local names=() name value
    while [[ $1 != -- ]]; do
        names+=("$1")
        shift
    done
    shift
    given=0
    for name in "${names[@]}"; do
        value=
        if (($# > 0)) && [[ $1 != --* ]]; then
            value=$1
            shift
        fi
        [[ ! $value ]] || given=$((given + 1))
        [[ $value ]] || value=$(in_repository "${name#*=}")
        printf -v "${name%%=*}" %s "$value"
    done
    if (($# > 0)) && [[ $1 != --* ]]; then
        fail "$1 is one positional value too many; ${#names[@]} are known, options start with --"
    fi
    options=("$@")
}

# End the script unless variables hold whole numbers of at least so much.
require_numbers() { # least, names of the variables
    local name
    for name in "${@:2}"; do
        [[ ${!name} =~ ^(0|[1-9][0-9]{0,8})$ && ${!name} -ge $1 ]] ||
            fail "$name is '${!name}'; allowed: a whole number, at least $1"
    done
}

# Set the array `precision` to the option of a precision; fp32 has none.
read_precision() { # name of the variable that holds it, precisions that are allowed
    local value=${!1} allowed="${*:2}" gpus=${NUM_GPU:-${NUM_GPUS:-}} where=
    [[ $gpus != 0 ]] || allowed=${allowed/fp16 /} allowed=${allowed/tf32 /} where=" where NUM_GPU is 0"
    [[ " $allowed " == *" $value "* ]] || fail "$1 is '$value'; allowed$where: ${allowed// /, }"
    precision=("--$value")
    [[ $value != fp32 ]] || precision=()
}
