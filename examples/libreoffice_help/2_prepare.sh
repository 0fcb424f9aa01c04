#!/usr/bin/env bash
# 2. Align paragraphs, train a joint subword model on the training text, binarize.
#    2_prepare.sh WORK SOURCE TARGET
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1 source=$2 target=$3
text=$work/text
[ -f "$text/train.$target" ] || python "$here/align.py" "$work/root/usr/share/libreoffice/help" "$source" "$target" "$text"
[ -f "$work/sp.model" ] || python -c "
import sys, sentencepiece
work, source, target = sys.argv[1:]
sentencepiece.SentencePieceTrainer.Train(
    input=[f'{work}/text/train.{source}', f'{work}/text/train.{target}'], model_prefix=f'{work}/sp',
    vocab_size=6000, character_coverage=0.9995, minloglevel=1)
" "$work" "$source" "$target"
for split in train valid valid1 test test1; do
    for language in "$source" "$target"; do
        [ -f "$work/$split.sp.$language" ] || python -c "
import sys, sentencepiece
model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
for line in sys.stdin:
    print(*model.Encode(line.strip(), out_type=str))
" "$work/sp.model" < "$text/$split.$language" > "$work/$split.sp.$language"
    done
done
[ -f "$work/data-bin/dict.$target.txt" ] || fairseq-preprocess -s "$source" -t "$target" --joined-dictionary \
    --trainpref "$work/train.sp" --validpref "$work/valid.sp,$work/valid1.sp" --testpref "$work/test.sp,$work/test1.sp" \
    --destdir "$work/data-bin" --workers 2 > "$work/preprocess.log" 2>&1
