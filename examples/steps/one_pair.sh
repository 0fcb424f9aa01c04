# Actors for one pair of a model of many languages; for `source`, by a script that has set
#   base, arch, pieces            the checkpoint, its tg architecture and its SentencePiece model
#   source_dict, target_dict      dictionaries of the data
#   task                          an array: the flags of the model's task, the same in every command
#   text, source, target, work    train, valid and test, each in .SOURCE and .TARGET; the languages; where to work
task=(--user-dir "$(python -m fairseq_tg)" --task tg_translation_multi_simple_epoch "${task[@]}"
    --lang-pairs "$source-$target" --encoder-langtok src --decoder-langtok)
mkdir -p "$work"

echo "== 1. SentencePiece, and binary data with the dictionaries of the release"
for split in train valid test; do
    for lang in "$source" "$target"; do
        [ -f "$work/$split.$lang" ] || python -c 'import sys, sentencepiece
pieces = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
sys.stdout.writelines(" ".join(pieces.encode(line.strip(), out_type=str)) + "\n" for line in sys.stdin)' \
            "$pieces" < "$text/$split.$lang" > "$work/$split.$lang"
    done
done
[ -d "$work/data-bin" ] || fairseq-preprocess -s "$source" -t "$target" --trainpref "$work/train" --validpref "$work/valid" \
    --testpref "$work/test" --srcdict "$source_dict" --tgtdict "$target_dict" --thresholdsrc 0 --thresholdtgt 0 \
    --destdir "$work/data-bin" --workers 2 > "$work/preprocess.log" 2>&1

echo "== 2. oracle corpus ($work/pseudo-bin)"
fairseq-generate "$work/data-bin" "${task[@]}" --path "$base" --gen-subset train --beam 10 --batch-size 16 \
    --kbest-dir "$work/pseudo-bin" --objective sbleu --selection top1 --quiet

echo "== 3. actors of rank 64 ($work/actor)"
fairseq-train "$work/pseudo-bin" "${task[@]}" --arch "$arch" --base-checkpoint "$base" --actor-rank 64 \
    --criterion actor_cross_entropy --label-smoothing 0.1 --optimizer adam --lr 2e-3 --max-tokens 1024 --max-epoch 3 \
    --no-epoch-checkpoints --save-dir "$work/actor"
fairseq-tg actor export "$work/actor/checkpoint_best.pt" "$work/$source-$target.safetensors"

echo "== 4. greedy, beam 5, and greedy with actors"
for system in "1" "5" "1 --actor-weights $work/$source-$target.safetensors"; do
    # shellcheck disable=SC2086
    fairseq-generate "$work/data-bin" "${task[@]}" -s "$source" -t "$target" --path "$base" --gen-subset test --batch-size 16 \
        --remove-bpe sentencepiece --scoring sacrebleu --beam $system | grep "^Generate" | sed "s|^|--beam $system: |"
done
