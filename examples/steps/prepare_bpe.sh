#!/usr/bin/env bash
# Tokenize (Moses), learn a joint BPE on the training text, apply it, binarize. WORK/text has train, valid and test.
#   prepare_bpe.sh WORK SOURCE TARGET MERGES
set -euo pipefail
work=$1 source=$2 target=$3 merges=$4
mkdir -p "$work/tok" "$work/bpe"
for split in train valid test; do
    for language in "$source" "$target"; do
        out=$work/tok/$split.$language
        [ -f "$out" ] || { sacremoses -l "$language" -j 2 -q tokenize -a < "$work/text/$split.$language" > "$out.part"; mv "$out.part" "$out"; }
    done
done
[ -f "$work/bpe/codes" ] || { cat "$work/tok/train.$source" "$work/tok/train.$target" |
    subword-nmt learn-bpe -s "$merges" > "$work/bpe/codes.part"; mv "$work/bpe/codes.part" "$work/bpe/codes"; }
for split in train valid test; do
    for language in "$source" "$target"; do
        out=$work/bpe/$split.$language
        [ -f "$out" ] || { subword-nmt apply-bpe -c "$work/bpe/codes" < "$work/tok/$split.$language" > "$out.part"; mv "$out.part" "$out"; }
    done
done
[ -f "$work/data-bin/dict.$target.txt" ] || fairseq-preprocess -s "$source" -t "$target" \
    --trainpref "$work/bpe/train" --validpref "$work/bpe/valid" --testpref "$work/bpe/test" \
    --destdir "$work/data-bin" --workers "$(nproc)" > "$work/preprocess.log" 2>&1
