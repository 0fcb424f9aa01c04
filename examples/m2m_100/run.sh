#!/usr/bin/env bash
# Actors for one pair of M2M-100 (418M or 1.2B parameters). Run it again to go on where it stopped.
#   run.sh RELEASE TEXT SOURCE TARGET [WORK [FLAGS...]]
# RELEASE has 418M_last_checkpoint.pt (or 1.2B_last_checkpoint.pt), model_dict.128k.txt, data_dict.128k.txt and spm.128k.model;
# TEXT has train, valid and test, each in .SOURCE and .TARGET, one sentence a line, not tokenized. FLAGS are of fairseq-tg run.
set -euo pipefail
release=$1 text=$2 source=$3 target=$4 work=${5:-work-m2m}
base=$(ls "$release"/*_last_checkpoint.pt | head -1)
# The dictionary of the data is without the symbols of languages, that of the model has them
bash "$(dirname "$0")/../steps/actor_of_release.sh" "$text" "$source" "$target" "$work" "$base" "$release/spm.128k.model" \
    "$release/data_dict.128k.txt" "$release/data_dict.128k.txt" --task tg_translation_multi_simple_epoch \
    --fixed-dictionary "$release/model_dict.128k.txt" --encoder-langtok src --decoder-langtok "${@:6}"
