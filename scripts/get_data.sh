#!/usr/bin/env bash
# Writes CNN-DM and XSum as data directories, one example a line.
#
#   bash scripts/get_data.sh [FOLDER] [cnn_dm] [xsum] [sample] [--any_option_of_utils.corpora.get_data ...]
#
# FOLDER is data/ unless named, the sets are cnn_dm and xsum. python -m utils.corpora.get_data --help lists the options.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

find_python
exec python -m utils.corpora.get_data "$@"
