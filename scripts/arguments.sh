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
    local names=() values=() i
    while [[ $1 != -- ]]; do
        names+=("$1")
        shift
    done
    shift
    while (($# > 0)) && [[ $1 != --* ]]; do
        values+=("$1")
        shift
    done
    options=("$@")
    if ((${#values[@]} > ${#names[@]})); then
        fail "${#values[@]} positional values, at most ${#names[@]} are known; options start with --"
    fi
    for ((i = 0; i < ${#names[@]}; i++)); do
        printf -v "${names[i]%%=*}" %s "${values[i]:-${names[i]#*=}}"
    done
}

# Set the array `precision` to the option of a precision; fp32 has none.
read_precision() { # name of the variable that holds it, precisions that are allowed
    local name=$1 value=${!1} allowed="${*:2}"
    if [[ " $allowed " != *" $value "* ]]; then
        fail "$name is '$value'; allowed: ${allowed// /, }"
    fi
    precision=()
    if [[ $value != fp32 ]]; then
        precision=("--$value")
    fi
}
