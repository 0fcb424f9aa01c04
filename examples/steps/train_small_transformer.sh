#!/usr/bin/env bash
# Train a small Transformer, of 128/512 dimensions and 3 layers; started again, it goes on where it was.
#   train_small_transformer.sh WORK
set -euo pipefail
work=$1
fairseq-train "$work/data-bin" --user-dir "$(python -m fairseq_tg)" --arch transformer_iwslt_de_en \
    --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 128 --decoder-embed-dim 128 --encoder-ffn-embed-dim 512 \
    --decoder-ffn-embed-dim 512 --encoder-attention-heads 4 --decoder-attention-heads 4 --share-all-embeddings \
    --dropout 0.15 --optimizer adam --adam-betas '(0.9, 0.98)' --lr 4e-3 --lr-scheduler inverse_sqrt \
    --warmup-updates 500 --clip-norm 1.0 --weight-decay 1e-4 --criterion label_smoothed_cross_entropy \
    --label-smoothing 0.1 --max-tokens 2048 --max-epoch "${EPOCHS:-14}" --no-epoch-checkpoints --num-workers 0 \
    --seed 1 --ignore-unused-valid-subsets --save-dir "$work/base" --log-format simple --log-interval 100 2>&1 | tee -a "$work/base.log" | grep --line-buffered ' valid '
