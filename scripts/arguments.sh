# How the scripts read their command lines; to be sourced.
# shellcheck shell=bash
# shellcheck disable=SC2034 # the scripts read `options` and `precision`

fail() { # message
    echo "${0##*/}: error: $1" >&2
    exit 2
}

# Read the values in front of the first argument that starts with "--":
#
#   read_arguments NAME=DEFAULT ... -- "$@"
#
# Each value becomes the variable NAME; a value that is empty or left off is DEFAULT. All other arguments become the
# array `options`.
read_arguments() {
    local names=() name value
    while [[ $1 != -- ]]; do
        names+=("$1")
        shift
    done
    shift
    for name in "${names[@]}"; do
        value=
        if (($# > 0)) && [[ $1 != --* ]]; then
            value=$1
            shift
        fi
        printf -v "${name%%=*}" %s "${value:-${name#*=}}"
    done
    if (($# > 0)) && [[ $1 != --* ]]; then
        fail "$1 is one positional value too many; ${#names[@]} are known, options start with --"
    fi
    options=("$@")
}

# Set the array `precision` to the option of a precision; fp32 has none.
read_precision() { # name of the variable that holds it, precisions that are allowed
    local name=$1 value=${!1} allowed="${*:2}"
    if [[ " $allowed " != *" $value "* ]]; then
        fail "$name is '$value'; allowed: ${allowed// /, }"
    fi
    precision=("--$value")
    [[ $value != fp32 ]] || precision=()
}
