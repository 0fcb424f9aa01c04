#!/usr/bin/env bash
# From nothing to an actor, on a toy language: a few minutes on two cores. Run it again to go on where it stopped.
#   make demo      or, with the package installed,      bash examples/toy/run.sh [WORK_DIRECTORY [SEED]]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-work-demo} seed=${2:-1}
data=$work/data-bin

echo "== 1. data: a seeded toy language ($work/text)"
[ -d "$work/text" ] || python "$here/make_data.py" "$work/text" --seed "$seed"
[ -f "$data/dict.tgt.txt" ] || fairseq-preprocess -s src -t tgt --trainpref "$work/text/train" \
    --validpref "$work/text/valid" --testpref "$work/text/test" --destdir "$data" --workers 2 > "$work/preprocess.log" 2>&1

echo "== 2. base: a small Transformer ($work/base; its log is $work/base.log)"
# (with the plugin, because fairseq alone cannot read its own checkpoints with torch 2.6 or newer, to go on with them)
fairseq-train "$data" --user-dir "$(python -m fairseq_tg)" --arch transformer --encoder-embed-dim 48 --decoder-embed-dim 48 --encoder-ffn-embed-dim 96 \
    --decoder-ffn-embed-dim 96 --encoder-layers 2 --decoder-layers 2 --encoder-attention-heads 4 \
    --decoder-attention-heads 4 --dropout 0.2 --optimizer adam --lr 3e-3 --lr-scheduler inverse_sqrt --warmup-updates 100 \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 2000 --max-epoch 12 \
    --no-epoch-checkpoints --seed "$seed" --save-dir "$work/base" --log-format simple --log-interval 1000 > "$work/base.log" 2>&1

echo "== 3. oracle corpus, actors and report: what fairseq-tg run does for any base"
# (top1: in this language a base has learned all that the references have, and these would only call it back; one round: to be quick)
fairseq-tg run --data "$data" --base "$work/base/checkpoint_best.pt" --out "$work" --beam 10 --batch-size 64 \
    --selection top1 --rounds 1 --lr 2e-3 --max-tokens 2000 --epochs 8 --seed "$seed"
