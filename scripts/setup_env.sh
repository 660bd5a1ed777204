# Make the virtual environment .venv if there is none, install the pins of a requirements file, and put it first on PATH.
# Source it from the root of the repository:
#
#   source scripts/setup_env.sh requirements.txt
#
# PYTHON names the interpreter that makes it, and VENV another place for it. pip leaves installed packages alone.
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

_setup_env() { # requirements file
    local venv=${VENV:-.venv} python clear=()
    if [[ $1 == --help || $1 == -h ]]; then
        sed -n '1,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
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
    echo "installing what is missing of $1 (the first time this takes minutes)"
    python -m pip install --quiet --disable-pip-version-check -r "$1"
}

_setup_env "${1:-}"
