"""How words are counted: by the language, by the text, and as sacreBLEU does it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import List, Optional

import pytest
import sacrebleu

from fairseq_tg.edit_rate import WordTER
from fairseq_tg.errors import UserError
from fairseq_tg.evaluation.scores import score_systems
from fairseq_tg.objectives import get_objective, score_list, score_pairs
from fairseq_tg.tokenizers import all_usual, divide_any, find_tokenizer, load_tokenizer, word_splitter

CHINESE = ["我们在公园里看见一只狗。", "他用 LibreOffice Writer 写了一封信、并保存为 PDF。"]
DIVIDED = ["我们 在 公园 里 看见 一 只 狗 。", "他 用 LibreOffice 写 了 一 封 信 。"]
JAPANESE = ["私たちは公園で犬を見ました。", "彼はすぐに帰ります。"]
THAI = ["ผมเห็นสุนัขตัวหนึ่งในสวนสาธารณะ แล้วมันก็วิ่งหนีไป", "เขากลับบ้านแล้ว"]
BURMESE = ["သင်သည် ဤအဖွဲ့မှ မက်ဆေ့ခ်ျများ သို့မဟုတ် နောက်ဆုံးသတင်းများကို လက်ခံရရှိတော့မည် မဟုတ်ပါ။"]
BURMESE_WORDS = ["အဲဒါ က ရှပ်အင်္ကျီ တစ် ထည် ဖြစ် ပါ သလား ။", "အဲ့ဒါ က ခွေး တစ် ကောင် ဖြစ် ပါ တယ် ။"]
ENGLISH = ["We saw a dog in the park.", "The sign said 公园, which is a park."]
KOREAN = ["우리는 공원에서 개를 보았다.", "그는 집에 갔다."]


def found(language: Optional[str], texts: List[str]) -> str:
    return find_tokenizer(language, texts.__getitem__, len(texts))


@pytest.mark.parametrize("language", ["zh", "zh_CN", "zh-TW", "zho_Hans", "yue_Hant", "ZH", "tgt", "", None])
def test_chinese_is_known_by_its_code_or_its_script(language: Optional[str]) -> None:
    assert found(language, CHINESE) == "zh"


@pytest.mark.parametrize("texts", [JAPANESE, THAI, BURMESE])
@pytest.mark.parametrize("language", ["ja", "ja_XX", "jpn_Jpan", "th_TH", "my_MM", "khm_Khmr", "lo", "tgt"])
def test_others_without_spaces_are_counted_by_characters(language: str, texts: List[str]) -> None:
    assert found(language, texts) == "char"


@pytest.mark.parametrize("texts", [KOREAN, DIVIDED, BURMESE_WORDS, ["ja", "nein"], ["Nihon no ie desu"]])
@pytest.mark.parametrize("language", ["en", "ko", "zh", "ja", "my", "tgt"])
def test_what_spaces_divide_is_counted_as_ever(language: str, texts: List[str]) -> None:
    assert found(language, texts) == "13a"


@pytest.mark.parametrize("language", ["en", "de_DE", "tgt"])
def test_a_foreign_word_changes_nothing(language: str) -> None:
    assert found(language, ENGLISH) == "13a"


def test_without_text_the_language_decides() -> None:
    assert [found(language, []) for language in ("zh_CN", "ja", "en", "tgt")] == ["zh", "char", "13a", "13a"]


def test_a_large_text_is_looked_at_from_end_to_end() -> None:
    asked: List[int] = []
    find_tokenizer("tgt", lambda i: asked.append(i) or "a b", 10**6)  # type: ignore[func-returns-value]
    assert len(asked) == 2000 and asked[0] == 0 and asked[-1] > 990_000


def test_texts_of_several_languages_are_each_counted_as_their_own() -> None:
    assert divide_any("a dog, 3.5") == load_tokenizer("13a")("a dog, 3.5")
    assert divide_any("一只 dog") == load_tokenizer("zh")("一只 dog") == "一 只 dog"
    assert divide_any("犬です") == "犬 で す"
    assert all_usual(ENGLISH.__getitem__, 2) and not all_usual([*ENGLISH, *THAI].__getitem__, 4)


@pytest.mark.parametrize("tokenizer, reference", [("zh", CHINESE[1]), ("char", JAPANESE[0]), ("intl", ENGLISH[0])])
def test_objectives_count_as_sacrebleu_does(tokenizer: str, reference: str) -> None:
    texts = [reference, reference[3:], reference[:5] + reference[7:], "犬 dog", ""]
    objective = get_objective("sbleu", tokenizer)
    expected = [
        sacrebleu.sentence_bleu(text, [reference], tokenize=tokenizer, use_effective_order=True).score for text in texts
    ]
    assert [objective.score(text, reference) for text in texts] == pytest.approx(expected)
    assert 0 < expected[2] < expected[0]
    for name in ("sbleu", "sbleu+1", "sbleu+2"):
        objective = get_objective(name, tokenizer)
        assert f"|tok:{tokenizer}|" in objective.signature
        assert score_list(objective, texts, reference, 0) == pytest.approx(
            [objective.score(text, reference) for text in texts]
        )
        pairs = score_pairs(objective, texts, 0)
        assert pairs[1][2] == pytest.approx(objective.score(texts[1], texts[2]))
    for name in ("meteor", "nist"):
        objective = get_objective(name, tokenizer)
        assert f"|tok:{tokenizer}|" in objective.signature
        pair = (" ".join(word_splitter(tokenizer)(text)) for text in (texts[2], reference))
        divided = get_objective(name).score(*pair)
        assert objective.score(texts[2], reference) == pytest.approx(divided) and divided > 0


def test_an_edit_rate_is_of_the_same_words_or_refused() -> None:
    usual, theirs, divided = WordTER(), sacrebleu.TER(), WordTER("intl")
    assert usual.sentence_score("a-b", ["a-c"]).score == theirs.sentence_score("a-b", ["a-c"]).score == 100
    assert str(usual.get_signature()) == str(theirs.get_signature())
    assert divided.sentence_score("a-b", ["a-c"]).score == pytest.approx(100 / 3)  # a, the hyphen, and b
    assert "|tok:intl+tercom|" in str(divided.get_signature())
    for name in ("zh", "char"):
        with pytest.raises(UserError, match=f"an edit rate of characters \\(--sacrebleu-tokenizer {name}\\)"):
            get_objective("ter", name)


def test_a_report_has_no_edit_rate_of_characters() -> None:
    outputs = {"greedy": [CHINESE[0][:9], CHINESE[1]], "beam 4": CHINESE}
    scores = score_systems(outputs, CHINESE, ["greedy"], "zh")
    assert scores.values["greedy"]["BLEU"] == pytest.approx(
        sacrebleu.corpus_bleu(outputs["greedy"], [CHINESE], tokenize="zh").score
    )
    assert set(scores.signatures) == {"BLEU", "chrF", "METEOR"} and "|tok:zh|" in scores.signatures["METEOR"]
    assert scores.lengths["greedy"] < 1 == scores.lengths["beam 4"]


NO_MECAB = pytest.mark.skipif(find_spec("MeCab") is not None, reason="MeCab is installed")


@pytest.mark.parametrize(
    "name, message",
    [
        ("chinese", "--sacrebleu-tokenizer chinese: sacreBLEU has none, zh, 13a"),
        pytest.param("ja-mecab", "ja-mecab cannot be used: .*sacrebleu\\[ja\\]", marks=NO_MECAB),
    ],
)
def test_what_sacrebleu_has_not_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        load_tokenizer(name)
    assert "\n" not in str(raised.value)
