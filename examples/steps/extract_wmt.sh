#!/usr/bin/env bash
# From WMT's archives to one sentence a line. Training files are those of the pair in all archives training-parallel-*.tgz.
#   extract_wmt.sh ARCHIVES WORK SOURCE TARGET VALID_SET TEST_SET        as in   extract_wmt.sh wmt14 work de en newstest2013 newstest2014
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
archives=$1 work=$2 source=$3 target=$4 valid=$5 test=$6
ls "$archives"/training-parallel-*.tgz > /dev/null 2>&1 ||
    { echo "extract_wmt.sh: error: no training-parallel-*.tgz in '$archives'" >&2; exit 1; }
mkdir -p "$work/raw" "$work/text"
for archive in "$archives"/*.tgz; do tar -xzf "$archive" -C "$work/raw"; done
for language in "$source" "$target"; do
    find "$work/raw" -type f \( -name "*.$source-$target.$language" -o -name "*.$target-$source.$language" \) | LC_ALL=C sort |
        xargs cat > "$work/text/train.$language"
done
[ "$(wc -l < "$work/text/train.$source")" = "$(wc -l < "$work/text/train.$target")" ] ||
    { echo "extract_wmt.sh: error: the two sides of the training text have not the same number of lines" >&2; exit 1; }
for pair in "valid $valid" "test $test"; do
    read -r split set <<< "$pair"
    for side in "src $source" "ref $target"; do
        read -r kind language <<< "$side"
        # a set is named for a direction (newstest2014-deen-src.de.sgm) or for none (newstest2013-src.de.sgm)
        file=$(find "$work/raw" -type f \( -name "$set-$source$target-$kind.$language.sgm" -o -name "$set-$kind.$language.sgm" \) | LC_ALL=C sort | head -n 1)
        [ -n "$file" ] || { echo "extract_wmt.sh: error: no $set-$kind.$language.sgm in the archives of '$archives'" >&2; exit 1; }
        python "$here/../formats.py" segments "$file" "$work/text/$split.$language"
    done
done
