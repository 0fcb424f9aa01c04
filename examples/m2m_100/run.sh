#!/usr/bin/env bash
# Actors for one pair of M2M-100 (418M or 1.2B parameters). Run it again to go on where it stopped.
#   run.sh RELEASE TEXT SOURCE TARGET [WORK]
# RELEASE has 418M_last_checkpoint.pt (or 1.2B_last_checkpoint.pt), model_dict.128k.txt, data_dict.128k.txt and spm.128k.model;
# TEXT has train, valid and test, each in .SOURCE and .TARGET, one sentence a line, not tokenized.
set -euo pipefail
release=$1 text=$2 source=$3 target=$4 work=${5:-work-m2m}
base=$(ls "$release"/*_last_checkpoint.pt | head -1)
tg=$(python -m fairseq_tg)
mkdir -p "$work"

echo "== 1. SentencePiece, and binary data with the dictionary of the release"
for split in train valid test; do
    for lang in "$source" "$target"; do
        [ -f "$work/$split.$lang" ] || python -c 'import sys, sentencepiece
pieces = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
sys.stdout.writelines(" ".join(pieces.encode(line.strip(), out_type=str)) + "\n" for line in sys.stdin)' \
            "$release/spm.128k.model" < "$text/$split.$lang" > "$work/$split.$lang"
    done
done
[ -d "$work/data-bin" ] || fairseq-preprocess -s "$source" -t "$target" --trainpref "$work/train" --validpref "$work/valid" \
    --testpref "$work/test" --srcdict "$release/data_dict.128k.txt" --tgtdict "$release/data_dict.128k.txt" \
    --thresholdsrc 0 --thresholdtgt 0 --destdir "$work/data-bin" --workers 2 > "$work/preprocess.log" 2>&1

# The same in every command: the dictionary has the symbols of all languages
task=(--user-dir "$tg" --task tg_translation_multi_simple_epoch --fixed-dictionary "$release/model_dict.128k.txt"
    --lang-pairs "$source-$target" --encoder-langtok src --decoder-langtok)

echo "== 2. oracle corpus ($work/pseudo-bin)"
fairseq-generate "$work/data-bin" "${task[@]}" --path "$base" --gen-subset train --beam 10 --batch-size 16 \
    --kbest-dir "$work/pseudo-bin" --objective sbleu --selection top1 --quiet

echo "== 3. actors of rank 64 ($work/actor)"
fairseq-train "$work/pseudo-bin" "${task[@]}" --arch tg_transformer --base-checkpoint "$base" --actor-rank 64 \
    --criterion actor_cross_entropy --label-smoothing 0.1 --optimizer adam --lr 2e-3 --max-tokens 1024 --max-epoch 3 \
    --no-epoch-checkpoints --save-dir "$work/actor"
fairseq-tg actor export "$work/actor/checkpoint_best.pt" "$work/$source-$target.safetensors"

echo "== 4. greedy, beam 5, and greedy with actors"
for system in "1" "5" "1 --actor-weights $work/$source-$target.safetensors"; do
    # shellcheck disable=SC2086
    fairseq-generate "$work/data-bin" "${task[@]}" -s "$source" -t "$target" --path "$base" --gen-subset test --batch-size 16 \
        --remove-bpe sentencepiece --scoring sacrebleu --beam $system | grep "^Generate" | sed "s|^|--beam $system: |"
done
