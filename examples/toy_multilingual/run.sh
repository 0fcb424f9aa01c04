#!/usr/bin/env bash
# A model of three languages, and an actor for one of its pairs: about two minutes on two cores.
#   bash examples/toy_multilingual/run.sh [WORK_DIRECTORY [SEED [SENTENCES [EPOCHS]]]]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-work-multilingual} seed=${2:-1} sentences=${3:-2500} epochs=${4:-14}
data=$work/data-bin
mkdir -p "$work"
tg=$(python -m fairseq_tg)
# The model's languages, whose order numbers their symbols, and where the symbols are: the same in every command
marks=(--langs en,xx,yy --encoder-langtok src --decoder-langtok)
pairs=en-xx,en-yy,xx-en,yy-en

echo "== 1. data: English and two languages, in which other words agree ($work/text)"
[ -d "$work/text" ] || python "$here/make_data.py" "$work/text" --seed "$seed" --train "$sentences"
if [ ! -d "$data" ]; then
    cat "$work"/text/train.* | tr ' ' '\n' | sort | uniq -c | sort -rn -k1,1 | awk '$2 != "" {print $2, $1}' > "$work/dict.txt"
    for other in xx yy; do
        fairseq-preprocess -s en -t $other --trainpref "$work/text/train.en-$other" --validpref "$work/text/valid.en-$other" \
            --testpref "$work/text/test.en-$other" --srcdict "$work/dict.txt" --tgtdict "$work/dict.txt" --destdir "$data" \
            --workers 2 > "$work/preprocess.log" 2>&1
    done
fi

echo "== 2. base: one Transformer for both languages, to and from English ($work/base; its log is $work/base.log)"
fairseq-train "$data" --user-dir "$tg" --task translation_multi_simple_epoch "${marks[@]}" --lang-pairs $pairs \
    --arch transformer --encoder-embed-dim 64 --decoder-embed-dim 64 --encoder-ffn-embed-dim 128 --decoder-ffn-embed-dim 128 \
    --encoder-layers 2 --decoder-layers 2 --encoder-attention-heads 4 --decoder-attention-heads 4 --share-all-embeddings \
    --dropout 0.1 --optimizer adam --lr 4e-3 --lr-scheduler inverse_sqrt --warmup-updates 100 \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 1200 --max-epoch "$epochs" \
    --no-epoch-checkpoints --seed "$seed" --save-dir "$work/base" --log-format simple --log-interval 1000 > "$work/base.log" 2>&1
base=$work/base/checkpoint_best.pt

echo "== 3. oracle corpus of en-xx, and actors for it"
task=(--user-dir "$tg" --task tg_translation_multi_simple_epoch "${marks[@]}")
fairseq-generate "$data" "${task[@]}" --lang-pairs en-xx --path "$base" --gen-subset train --beam 10 --max-len-b 40 \
    --batch-size 64 --kbest-dir "$work/pseudo-bin" --objective sbleu --selection top1 --quiet > "$work/corpus.log" 2>&1
fairseq-tg corpus status "$work/pseudo-bin"
fairseq-train "$work/pseudo-bin" "${task[@]}" --lang-pairs en-xx --arch tg_transformer --base-checkpoint "$base" \
    --criterion actor_cross_entropy --optimizer adam --lr 2e-3 --max-tokens 2000 --max-epoch 8 --no-epoch-checkpoints \
    --seed "$seed" --save-dir "$work/actor" --log-format simple --log-interval 1000 > "$work/actor.log" 2>&1

echo "== 4. en-xx on the test set: greedy, beam 4, and greedy with actors"
for system in "$base 1" "$base 4" "$work/actor/checkpoint_last.pt 1"; do
    read -r path beam <<< "$system"
    fairseq-generate "$data" "${task[@]}" -s en -t xx --lang-pairs en-xx --path "$path" --gen-subset test --beam "$beam" \
        --max-len-b 40 --scoring sacrebleu 2> "$work/generate.log" | grep "^Generate" | sed "s|^|$path: |"
done
