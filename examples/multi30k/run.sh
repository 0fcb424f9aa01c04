#!/usr/bin/env bash
# Multi30k German to English, from a directory with its raw files. Run it again to go on where it stopped.
#   run.sh RAW [WORK]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
raw=${1:?usage: run.sh RAW [WORK]} work=${2:-work-multi30k}
echo "== 1. prepare"; bash "$here/1_prepare.sh" "$raw" "$work"
echo "== 2. base"; bash "$here/../steps/train_small_transformer.sh" "$work"
echo "== 3. actor"; bash "$here/3_actor.sh" "$work"
