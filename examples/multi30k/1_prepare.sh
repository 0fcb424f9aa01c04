#!/usr/bin/env bash
# 1. From the raw files (train, val, test_2016_flickr and test_2017_flickr, .de.gz and .en.gz) to a data directory; with the
#    sentencepiece model of a base if one is given, else with one of 4,000 pieces trained here.
#    1_prepare.sh RAW WORK [SENTENCEPIECE_MODEL]
set -euo pipefail
raw=$1 work=$2 model=${3:-}
mkdir -p "$work/text" "$work/sp"
for pair in "train train" "val valid" "test_2016_flickr test" "test_2017_flickr test1"; do
    read -r from to <<< "$pair"
    for language in de en; do
        [ -f "$raw/$from.$language.gz" ] || { echo "1_prepare.sh: error: no '$raw/$from.$language.gz'" >&2; exit 1; }
        gzip -dc "$raw/$from.$language.gz" > "$work/text/$to.$language"
    done
done
if [ -n "$model" ]; then cp "$model" "$work/sp.model"; fi
[ -f "$work/sp.model" ] || python -c "
import sys, sentencepiece
work = sys.argv[1]
sentencepiece.SentencePieceTrainer.Train(
    input=[f'{work}/text/train.de', f'{work}/text/train.en'], model_prefix=f'{work}/sp', vocab_size=4000, minloglevel=1)
" "$work"
for split in train valid test test1; do
    for language in de en; do
        python -c "
import sys, sentencepiece
model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
for line in sys.stdin:
    print(*model.Encode(line.strip(), out_type=str))
" "$work/sp.model" < "$work/text/$split.$language" > "$work/sp/$split.$language"
    done
done
[ -f "$work/data-bin/dict.en.txt" ] || fairseq-preprocess -s de -t en --joined-dictionary --trainpref "$work/sp/train" \
    --validpref "$work/sp/valid" --testpref "$work/sp/test,$work/sp/test1" --destdir "$work/data-bin" --workers 2 > "$work/preprocess.log" 2>&1
