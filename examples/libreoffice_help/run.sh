#!/usr/bin/env bash
# From Debian's packages to a report, for two languages of LibreOffice's help. Run it again to go on where it stopped.
#   run.sh SOURCE TARGET [WORK]      as in      run.sh de en
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=${1:?usage: run.sh SOURCE TARGET [WORK], as in: run.sh de en} target=${2:?the target language, as en}
work=${3:-work-libreoffice-$source-$target}
echo "== 1. fetch"; bash "$here/1_fetch.sh" "$work" "$source" "$target"
echo "== 2. prepare"; bash "$here/2_prepare.sh" "$work" "$source" "$target"
echo "== 3. base"; bash "$here/../steps/train_small_transformer.sh" "$work"
echo "== 4. actor"; bash "$here/4_actor.sh" "$work"
