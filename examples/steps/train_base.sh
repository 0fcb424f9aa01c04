#!/usr/bin/env bash
# Train a base of one of the paper's architectures; started again, it goes on where it was.
#   train_base.sh WORK FAMILY SIZE [FLAGS OF fairseq-train...]       FAMILY: transformer, lstm, fconv; SIZE: iwslt16, wmt
set -euo pipefail
work=$1 family=$2 size=$3; shift 3
case $family-$size in
    fconv-iwslt16) arch=(fconv_iwslt_de_en) recipe=(--optimizer nag --lr 0.25 --lr-scheduler fixed --force-anneal 50 --clip-norm 0.1) ;;
    fconv-wmt) arch=(fconv_wmt_en_de) recipe=(--optimizer nag --lr 0.5 --lr-scheduler fixed --force-anneal 50 --clip-norm 0.1) ;;
    lstm-*) arch=("lstm_chen2018_$size") recipe=(--optimizer adam --lr 1e-3 --lr-scheduler reduce_lr_on_plateau --lr-shrink 0.5 --clip-norm 5) ;;
    transformer-*) arch=("transformer_chen2018_$size") recipe=(--optimizer adam --adam-betas "(0.9, 0.98)" --lr 5e-4
        --lr-scheduler inverse_sqrt --warmup-updates 4000 --clip-norm 0) ;;
    *) echo "train_base.sh: error: no '$family' of size '$size': transformer, lstm or fconv; iwslt16 or wmt" >&2; exit 1 ;;
esac
fairseq-train "$work/data-bin" --user-dir "$(python -m fairseq_tg)" --arch "${arch[@]}" "${recipe[@]}" \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 4000 --no-epoch-checkpoints --patience 5 \
    --save-dir "$work/$family" --log-format simple --log-interval 1000 "$@" 2>&1 | tee -a "$work/$family.log" | grep --line-buffered ' valid '
