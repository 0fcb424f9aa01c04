#!/usr/bin/env bash
# Actors for one pair of mBART-50. Run it again to go on where it stopped.
#   run.sh RELEASE TEXT SOURCE TARGET [WORK]       as in run.sh mbart50.ft.nn text de_DE en_XX
# RELEASE is what mbart50.ft.nn.tar.gz (or .ft.n1, .ft.1n) unpacks to: model.pt, ML50_langs.txt, sentence.bpe.model and dict.*.txt;
# TEXT has train, valid and test, each in .SOURCE and .TARGET, one sentence a line, not tokenized.
set -euo pipefail
release=$1 text=$2 source=$3 target=$4 work=${5:-work-mbart50}
base=$release/model.pt
arch=tg_bart
pieces=$release/sentence.bpe.model
source_dict=$release/dict.$source.txt target_dict=$release/dict.$target.txt
task=(--lang-dict "$release/ML50_langs.txt" --lang-tok-style mbart) # the order of languages numbers their symbols, [de_DE] and its kin
source "$(dirname "$0")/../steps/one_pair.sh"
