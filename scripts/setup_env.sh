# Make the virtual environment .venv if there is none, install the pins of a requirements file, and put it first on PATH.
# Source it from the root of the repository:
#
#   source scripts/setup_env.sh requirements.txt
#
# PYTHON names the interpreter that makes it, and VENV another place for it. pip leaves installed packages alone. On Linux
# without an NVIDIA driver torch is PyTorch's build for CPUs, which saves gigabytes; CPU_TORCH=0 takes the usual one.
# shellcheck shell=bash

_works() { # true if a name is a Python of a supported version that has all that `-m venv` needs
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

_find_python() { # prints PYTHON, or the machine's usual python3 if it works, else the newest that works
    local candidate candidates=(python3 python3.13 python3.12 python3.11 python3.10 python)
    [[ ! ${PYTHON:-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if _works "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "error: no Python 3.10 to 3.13 with the venv module: tried ${candidates[*]}; name one by PYTHON=/path/to/python" >&2
    return 2
}

_is_installed() { # words of pip that name packages: it has no index, so it installs nothing and fails if one is missing
    PIP_CONFIG_FILE=/dev/null python -m pip --isolated install --quiet --no-index "$@" >/dev/null 2>&1
}

_has_driver() {
    command -v nvidia-smi >/dev/null || [[ -e /proc/driver/nvidia || $(find /dev -maxdepth 1 -name 'nvidia*') ]]
}

_install_cpu_torch() { # requirements file: its torch as built for CPUs, on machines that have nothing else
    local index=https://download.pytorch.org/whl/cpu pin
    pin=$(cat "$1" "$(dirname "$1")/requirements.txt" 2>/dev/null | grep -om1 '^torch==[0-9.]*') || return 0
    if [[ ${CPU_TORCH:-1} == 0 || $(uname -s) != Linux ]] || _has_driver || _is_installed --no-deps "$pin"; then
        return
    fi
    echo "no NVIDIA driver here: taking $pin for CPUs from $index (CPU_TORCH=0 takes the one for GPUs)"
    python -m pip install "${pip[@]}" --retries 1 --timeout 15 --no-deps --index-url "$index" "$pin" >&2 2>/dev/null ||
        echo "$index does not give $pin: taking it from pip's own index, which may be gigabytes" >&2
}

_setup_env() { # requirements file
    local venv=${VENV:-.venv} python clear=() pip=(--disable-pip-version-check --quiet)
    if [[ $1 == --help || $1 == -h ]]; then
        sed -n '1,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        return
    fi
    if [[ ! -f $1 ]]; then
        echo "error: no file '$1'; from the root of the repository: source scripts/setup_env.sh requirements.txt" >&2
        return 2
    fi
    if [[ ${BART_IMAGE:-} ]]; then # it has the packages of requirements.txt, with its own torch
        [[ ${1##*/} == requirements.txt ]] || python -m pip install --quiet -r <(grep -v '^-r' "$1")
        return
    fi
    if ! _works "$venv/bin/python"; then
        if [[ -e $venv/pyvenv.cfg ]]; then
            clear=(--clear) # an environment whose Python is gone, or too old
        elif [[ -e $venv && (! -d $venv || $(ls -A "$venv")) ]]; then
            echo "error: VENV is '$venv'; allowed: a virtual environment, an empty folder, or none yet" >&2
            return 2
        fi
        python=$(_find_python) || return
        echo "making $venv with $("$python" --version)"
        "$python" -m venv ${clear[@]+"${clear[@]}"} "$venv" || return
    fi
    venv=$(cd "$venv" && pwd)
    export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
    hash -r
    ! _is_installed -r "$1" || return 0
    [[ ! -t 2 ]] || pip=(--disable-pip-version-check) # it shows its progress
    _install_cpu_torch "$1"
    echo "installing what is missing of $1 (the first time this takes minutes)"
    python -m pip install "${pip[@]}" -r "$1" >&2
}

_setup_env "${1:-}"
