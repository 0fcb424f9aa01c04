#!/usr/bin/env bash
# One of the paper's experiments on a local copy of its distribution. Run it again to go on where it stopped.
#   paper_experiment.sh EXAMPLE SOURCE TARGET MERGES SIZE ARCHIVES [WORK] [FAMILY]
#   EXAMPLE: the folder with its 1_extract.sh; MERGES: of BPE; SIZE: iwslt16 or wmt; FAMILY: transformer (default), lstm or fconv
set -euo pipefail
steps=$(cd "$(dirname "$0")" && pwd)
example=$1 source=$2 target=$3 merges=$4 size=$5
archives=${6:?usage: run.sh ARCHIVES [WORK] [FAMILY]} work=${7:-work-$(basename "$example")} family=${8:-transformer}
echo "== 1. extract"; bash "$example/1_extract.sh" "$archives" "$work"
echo "== 2. prepare"; bash "$steps/prepare_bpe.sh" "$work" "$source" "$target" "$merges"
echo "== 3. base"; bash "$steps/train_base.sh" "$work" "$family" "$size"
# The paper's own setting: gates at the attention, the best of every list by sentence BLEU, the base's dropout off
echo "== 4. actor"; fairseq-tg run --data "$work/data-bin" --base "$work/$family/checkpoint_best.pt" --out "$work/tg-$family" \
    --actor-sites attention --selection top1 --objective sbleu --lr 3e-3 --no-base-dropout --rounds 1
