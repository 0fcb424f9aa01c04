#!/usr/bin/env bash
# The commands of docs/results.md for the Transformer on Multi30k, from a directory with its bin/ and transformer.pt, and fairseq_tg/.
set -euo pipefail
# Three test sets, three seeds
fairseq-generate bin --user-dir fairseq_tg --task tg_translation --path transformer.pt --gen-subset train --beam 35 --batch-size 16 \
    --kbest-dir lists --kbest-jsonl --kbest-greedy --objective sbleu+2 --selection comb --num-workers 0 --cpu
for seed in 1 2 3; do
    fairseq-train lists --user-dir fairseq_tg --task tg_translation --arch tg_transformer --base-checkpoint transformer.pt --actor gate \
        --actor-sites maps --actor-site-rank 0 --base-dropout --criterion actor_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --lr 1e-3 --clip-norm 1.0 --max-tokens 2048 --lr-scheduler polynomial_decay --warmup-updates 100 \
        --total-num-update 1500 --max-update 1500 --end-learning-rate 0 --seed $seed --no-epoch-checkpoints --save-dir seed-$seed
done
fairseq-tg report --data bin --base transformer.pt --actor seed-1/checkpoint_last.pt --actor seed-2/checkpoint_last.pt \
    --actor seed-3/checkpoint_last.pt --subset test,test1,test2 --out report-3
for seed in 1 2 3; do
    fairseq-generate bin --user-dir fairseq_tg --task tg_translation --path seed-$seed/checkpoint_last.pt --gen-subset train --beam 35 \
        --batch-size 16 --kbest-dir lists-$seed --kbest-jsonl --objective sbleu+2 --kbest-refresh lists --num-workers 0 --cpu
    fairseq-train lists-$seed --user-dir fairseq_tg --task tg_translation --arch tg_transformer --base-checkpoint transformer.pt \
        --actor gate --actor-sites maps --actor-site-rank 0 --base-dropout --criterion actor_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --lr 1e-3 --clip-norm 1.0 --max-tokens 2048 --lr-scheduler polynomial_decay --warmup-updates 100 \
        --total-num-update 1150 --max-update 1150 --end-learning-rate 0 --seed $seed --no-epoch-checkpoints --save-dir round-$seed \
        --finetune-from-model seed-$seed/checkpoint_last.pt
done
fairseq-tg report --data bin --base transformer.pt --actor round-1/checkpoint_last.pt --actor round-2/checkpoint_last.pt \
    --actor round-3/checkpoint_last.pt --subset test,test1,test2 --out report-round-2
# The same in one command, which also trains on the chosen translations alone, and keeps the best by validation
fairseq-tg run --data bin --base transformer.pt --out work --subset test,test1,test2
# The earlier rounds'
fairseq-generate bin --user-dir fairseq_tg --task tg_translation --path transformer.pt --gen-subset train --beam 35 --batch-size 16 \
    --kbest-dir pseudo35 --kbest-jsonl --kbest-engine ctranslate2 --objective sbleu+2 --num-workers 0 --cpu
fairseq-train pseudo35 --user-dir fairseq_tg --task tg_translation --arch tg_transformer --base-checkpoint transformer.pt --actor rnn \
    --criterion actor_cross_entropy --label-smoothing 0.1 --optimizer adam --lr 3e-3 --clip-norm 1.0 --lr-scheduler polynomial_decay \
    --warmup-updates 100 --total-num-update 1150 --max-update 1150 --end-learning-rate 0 --max-tokens 2048 --seed 1 --no-epoch-checkpoints
fairseq-tg report --data bin --base transformer.pt --actor checkpoints/checkpoint_last.pt --subset test --out report
