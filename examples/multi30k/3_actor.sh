#!/usr/bin/env bash
# 3. The oracle corpus, the actor, and reports on both test sets.
#    3_actor.sh WORK [BASE]
set -euo pipefail
work=$1 base=${2:-$1/base/checkpoint_best.pt}
fairseq-tg run --data "$work/data-bin" --base "$base" --out "$work"
fairseq-tg report --data "$work/data-bin" --base "$base" --actor "$work/actor/checkpoint_best.pt" --subset test1 --out "$work/report-test1"
