#!/usr/bin/env bash
# CNN-DM and XSum as line files: bash scripts/get_data.sh [folder] [cnn_dm] [xsum] [sample] [--any_option_of_get_data ...]
# The folder is data/ unless named, the sets cnn_dm and xsum; --help lists the options.
exec python -m utils.corpora.get_data "$@"
