#!/usr/bin/env bash
# 4. The oracle corpus, the actor and the report on the two test sets.
#    4_actor.sh WORK
set -euo pipefail
fairseq-tg run --data "$1/data-bin" --base "$1/base/checkpoint_best.pt" --out "$1" --subset test,test1
