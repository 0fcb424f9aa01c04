#!/usr/bin/env bash
# From nothing to an actor, on a toy language: a few minutes on two cores. Run it again to go on where it stopped.
#   make demo      or, with the package installed,      bash examples/toy/run.sh [WORK_DIRECTORY]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-work-demo}
user_dir=$(python -m fairseq_tg)
data=$work/data-bin
quiet=(--log-format simple --log-interval 1000)

echo "== 1. data: a seeded toy language ($work/text)"
[ -d "$work/text" ] || python "$here/make_data.py" "$work/text" --seed 1
[ -f "$data/dict.tgt.txt" ] || fairseq-preprocess -s src -t tgt --trainpref "$work/text/train" \
    --validpref "$work/text/valid" --testpref "$work/text/test" --destdir "$data" --workers 2 > "$work/preprocess.log" 2>&1

echo "== 2. base: a small Transformer ($work/base)"
fairseq-train "$data" --arch transformer --encoder-embed-dim 48 --decoder-embed-dim 48 --encoder-ffn-embed-dim 96 \
    --decoder-ffn-embed-dim 96 --encoder-layers 2 --decoder-layers 2 --encoder-attention-heads 4 \
    --decoder-attention-heads 4 --dropout 0.2 --optimizer adam --lr 3e-3 --lr-scheduler inverse_sqrt --warmup-updates 100 \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 2000 --max-epoch 12 \
    --no-epoch-checkpoints --save-dir "$work/base" "${quiet[@]}" > "$work/base.log" 2>&1

echo "== 3. oracle corpus: of the 10 best translations of every training sentence, the best by sentence BLEU ($work/pseudo-bin)"
fairseq-tg corpus build --shards 2 -- "$data" --user-dir "$user_dir" --task tg_translation --gen-subset train \
    --path "$work/base/checkpoint_best.pt" --beam 10 --batch-size 64 \
    --kbest-dir "$work/pseudo-bin" --objective sbleu --selection top1

echo "== 4. actor: gate actors on the frozen base ($work/actor)"
fairseq-train "$work/pseudo-bin" --user-dir "$user_dir" --task tg_translation --arch tg_transformer \
    --base-checkpoint "$work/base/checkpoint_best.pt" --actor gate --criterion actor_cross_entropy \
    --optimizer adam --lr 2e-3 --max-tokens 2000 --max-epoch 8 --no-epoch-checkpoints \
    --save-dir "$work/actor" "${quiet[@]}" > "$work/actor.log" 2>&1
fairseq-tg actor export "$work/actor/checkpoint_best.pt" "$work/actor.safetensors"

echo "== 5. the test set, translated"
generate() { # name, checkpoint, beam
    fairseq-generate "$data" --user-dir "$user_dir" --task tg_translation --path "$2" --beam "$3" --scoring sacrebleu \
        > "$work/$1.out" 2> "$work/$1.err"
    printf '%-10s %s\n' "$1" "$(tail -n 1 "$work/$1.out")"
}
generate greedy "$work/base/checkpoint_best.pt" 1
generate beam4 "$work/base/checkpoint_best.pt" 4
generate tg "$work/actor/checkpoint_best.pt" 1
generate tg+beam4 "$work/actor/checkpoint_best.pt" 4
echo "Translations and logs are in $work."
