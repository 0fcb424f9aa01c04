#!/usr/bin/env bash
# 1. Europarl v8 and Wiki Headlines to train on, newsdev2015 for validation, newstest2015 to test.
#    1_extract.sh ARCHIVES WORK
set -euo pipefail
bash "$(dirname "$0")/../steps/extract_wmt.sh" "$1" "$2" fi en newsdev2015 newstest2015
