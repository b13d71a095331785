"""Tests of turns that are nothing but thanks, in several languages."""

from __future__ import annotations

import pytest

from ratchet.materializer.labels.signals.thanks import LONGEST, THANKS, is_thanks


@pytest.mark.parametrize(
    "text",
    [
        *("Thanks!", "thank you so much 🙏", "Perfect, thanks a lot.", "OK, got it, thanks again", "ty", "Thank you, that's all."),
        *("Danke!", "Super, vielen Dank dir", "Danke schön, das hat geholfen", "Merci beaucoup !", "Parfait, merci à vous"),
        *("¡Muchas gracias!", "Obrigada pela ajuda", "Grazie mille", "Dank je wel!", "Bardzo dziękuję", "Tusen takk", "Tack så mycket!"),
        *(
            "Спасибо большое!",
            "Щиро дякую",
            "Çok teşekkürler",
            "谢谢！",
            "非常感谢",
            "どうもありがとうございます",
            "정말 감사합니다",
            "ขอบคุณมากค่ะ".replace("มากค่ะ", ""),
        ),
        *("شكرا جزيلا", "תודה רבה", "धन्यवाद", "Cảm ơn bạn nhiều", "KIITOS", "Díky moc"),
    ],
)
def test_thanks_are_recognised(text: str) -> None:
    assert is_thanks(text)


@pytest.mark.parametrize(
    "text",
    [
        *("Thanks, but that is wrong.", "thanks for nothing", "No thanks", "no, thank you", "Thanks. Now do it in Spanish", "thanksgiving"),
        *("Thank you but the second line is missing", "thanks?? it still fails", "ok", "perfect", "", "   ", "!!!", "Say thanks to her"),
        *("Danke, aber das ist falsch", "Nein danke", "Danke für nichts", "Merci, mais c'est faux", "Non merci", "Gracias, pero está mal"),
        *("No, gracias", "Grazie, ma non funziona", "Obrigado, mas está errado", "Dank je, maar dat klopt niet", "Спасибо, но это неверно"),
        *("谢谢，但是错了", "不用谢", "ありがとう、でも違います", "감사합니다만 틀렸어요", "Teşekkürler ama yanlış", "شكرا ولكن هذا خطأ"),
        *("How do I say thank you in German?", "thanks " * LONGEST, "takk for alt, men det er feil"),
    ],
)
def test_other_turns_are_no_thanks(text: str) -> None:
    assert not is_thanks(text)


def test_every_phrase_of_the_table_thanks() -> None:
    assert [phrase for phrases in THANKS.values() for phrase in phrases if not is_thanks(phrase.upper())] == []


def test_a_loop_file_can_add_phrases() -> None:
    assert not is_thanks("Eskerrik asko!")
    assert is_thanks("Eskerrik asko!", ["eskerrik asko"])
    assert not is_thanks("Eskerrik asko, baina ez", ["eskerrik asko"])


def test_a_long_text_of_ambiguous_phrases_is_decided_at_once() -> None:
    assert not is_thanks("thank you so much a lot very much a million thank you so x")
