#!/usr/bin/env bash
# 1. Europarl v7, Common Crawl and News Commentary v9 to train on, newstest2013 for validation, newstest2014 to test.
#    1_extract.sh ARCHIVES WORK
set -euo pipefail
bash "$(dirname "$0")/../steps/extract_wmt.sh" "$1" "$2" de en newstest2013 newstest2014
