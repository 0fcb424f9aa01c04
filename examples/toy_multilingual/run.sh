#!/usr/bin/env bash
# A model of three languages, and an actor for one of its pairs: about two minutes on two cores. Run it again to go on.
#   bash examples/toy_multilingual/run.sh [WORK_DIRECTORY [SEED [SENTENCES [EPOCHS]]]]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-work-multilingual} seed=${2:-1} sentences=${3:-2500} epochs=${4:-14}
data=$work/data-bin
mkdir -p "$work"
tg=$(python -m fairseq_tg)
# The model's languages, whose order numbers their symbols, and where the symbols are
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
    --no-epoch-checkpoints --num-workers 0 --seed "$seed" --save-dir "$work/base" --log-format simple --log-interval 1000 > "$work/base.log" 2>&1
base=$work/base/checkpoint_best.pt

echo "== 3. oracle corpus of en-xx, actors for it and a report: what fairseq-tg run does for any base"
# (its checkpoint says where the symbols are)
fairseq-tg run --data "$data" --base "$work/base/checkpoint_best.pt" --out "$work" --source-lang en --target-lang xx --beam 10 \
    --batch-size 64 --lr 2e-3 --max-tokens 2000 --epochs 8 --seed "$seed"
