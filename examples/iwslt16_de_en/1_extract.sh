#!/usr/bin/env bash
# 1. From the distribution's archive, de-en.tgz, to one sentence a line: train.tags; tst2013 for validation, tst2014 to test.
#    1_extract.sh ARCHIVES WORK
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
archive=$1/de-en.tgz work=$2
[ -f "$archive" ] || { echo "1_extract.sh: error: no '$archive': it is the German-English archive of IWSLT 2016" >&2; exit 1; }
mkdir -p "$work/raw"
tar -xzf "$archive" -C "$work/raw" --strip-components=1
python "$here/../formats.py" tags "$work/raw/train.tags.de-en.de" "$work/raw/train.tags.de-en.en" "$work/text/train.de" "$work/text/train.en"
for language in de en; do
    python "$here/../formats.py" segments "$work/raw/IWSLT16.TED.tst2013.de-en.$language.xml" "$work/text/valid.$language"
    python "$here/../formats.py" segments "$work/raw/IWSLT16.TED.tst2014.de-en.$language.xml" "$work/text/test.$language"
done
