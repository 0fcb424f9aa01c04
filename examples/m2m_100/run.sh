#!/usr/bin/env bash
# Actors for one pair of M2M-100 (418M or 1.2B parameters). Run it again to go on where it stopped.
#   run.sh RELEASE TEXT SOURCE TARGET [WORK]
# RELEASE has 418M_last_checkpoint.pt (or 1.2B_last_checkpoint.pt), model_dict.128k.txt, data_dict.128k.txt and spm.128k.model;
# TEXT has train, valid and test, each in .SOURCE and .TARGET, one sentence a line, not tokenized.
set -euo pipefail
release=$1 text=$2 source=$3 target=$4 work=${5:-work-m2m}
base=$(ls "$release"/*_last_checkpoint.pt | head -1)
arch=tg_transformer
pieces=$release/spm.128k.model
source_dict=$release/data_dict.128k.txt target_dict=$release/data_dict.128k.txt
task=(--fixed-dictionary "$release/model_dict.128k.txt") # which has the symbols of all languages
source "$(dirname "$0")/../steps/one_pair.sh"
