#!/usr/bin/env bash
# Actors for one pair of a released model of many languages: data as the release has it, then what fairseq-tg run does for any base.
# Run it again to go on where it stopped.
#   actor_of_release.sh TEXT SOURCE TARGET WORK BASE PIECES SOURCE_DICT TARGET_DICT FLAGS...
#   TEXT: has train, valid and test, each in .SOURCE and .TARGET, one sentence a line, not tokenized; PIECES: the SentencePiece model
#   FLAGS: of fairseq-tg run; where the model's language symbols are, if its checkpoint does not say so
set -euo pipefail
text=$1 source=$2 target=$3 work=$4 base=$5 pieces=$6 source_dict=$7 target_dict=$8
shift 8
mkdir -p "$work"

echo "== SentencePiece, and binary data with the dictionaries of the release"
for split in train valid test; do
    for lang in "$source" "$target"; do
        out=$work/$split.$lang
        [ -f "$out" ] || { python -c 'import sys, sentencepiece
pieces = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
sys.stdout.writelines(" ".join(pieces.encode(line.strip(), out_type=str)) + "\n" for line in sys.stdin)' \
            "$pieces" < "$text/$split.$lang" > "$out.part"; mv "$out.part" "$out"; }
    done
done
[ -f "$work/data-bin/dict.$target.txt" ] || fairseq-preprocess -s "$source" -t "$target" --trainpref "$work/train" \
    --validpref "$work/valid" --testpref "$work/test" --srcdict "$source_dict" --tgtdict "$target_dict" \
    --thresholdsrc 0 --thresholdtgt 0 --destdir "$work/data-bin" --workers 2 > "$work/preprocess.log" 2>&1

fairseq-tg run --data "$work/data-bin" --base "$base" --out "$work" --source-lang "$source" --target-lang "$target" \
    --beam 10 --actor-rank 64 --lr 2e-3 --max-tokens 1024 --epochs 3 "$@"
fairseq-tg actor export "$work/actor/checkpoint_best.pt" "$work/$source-$target.safetensors"
