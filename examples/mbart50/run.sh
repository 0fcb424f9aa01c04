#!/usr/bin/env bash
# Actors for one pair of mBART-50. Run it again to go on where it stopped.
#   run.sh RELEASE TEXT SOURCE TARGET [WORK [FLAGS...]]       as in run.sh mbart50.ft.nn text de_DE en_XX
# RELEASE is what mbart50.ft.nn.tar.gz (or .ft.n1, .ft.1n) unpacks to: model.pt, ML50_langs.txt, sentence.bpe.model and dict.*.txt;
# TEXT has train, valid and test, each in .SOURCE and .TARGET, one sentence a line, not tokenized. FLAGS are of fairseq-tg run.
set -euo pipefail
release=$1 text=$2 source=$3 target=$4 work=${5:-work-mbart50}
# The order of the languages numbers their symbols, [de_DE] and its kin
bash "$(dirname "$0")/../steps/actor_of_release.sh" "$text" "$source" "$target" "$work" "$release/model.pt" \
    "$release/sentence.bpe.model" "$release/dict.$source.txt" "$release/dict.$target.txt" \
    --task tg_translation_multi_simple_epoch --lang-dict "$release/ML50_langs.txt" --lang-tok-style mbart \
    --encoder-langtok src --decoder-langtok "${@:6}"
