#!/usr/bin/env bash
# The paper's experiment on a local copy of the distribution. Run it again to go on where it stopped.
#   run.sh ARCHIVES [WORK] [FAMILY]       FAMILY: transformer (default), lstm or fconv
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
archives=${1:?usage: run.sh ARCHIVES [WORK] [FAMILY]} work=${2:-work-wmt14_de_en} family=${3:-transformer}
echo "== 1. extract"; bash "$here/1_extract.sh" "$archives" "$work"
echo "== 2. prepare"; bash "$here/../steps/prepare_bpe.sh" "$work" de en 40000
echo "== 3. base"; bash "$here/../steps/train_base.sh" "$work" "$family" wmt
echo "== 4. actor"; fairseq-tg run --data "$work/data-bin" --base "$work/$family/checkpoint_best.pt" --out "$work/tg-$family"
