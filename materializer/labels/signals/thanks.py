"""Recognises a turn of a user that is nothing but thanks, in several languages.

The whole text must consist of phrases of the tables, and at least one phrase must be a thank-you. "Thanks, but that is wrong" has other
words, so it does not count. Irony is not recognised.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

LONGEST = 60
"""Characters of the longest text that can be nothing but thanks."""
_BEGIN = 4 * LONGEST
"""Characters of a longer text that are looked at first: most turns are longer than thanks, and their letters need no second look."""

THANKS: dict[str, tuple[str, ...]] = {
    "ar": ("شكرا", "شكرا لك", "شكرا جزيلا"),
    "cs": ("díky", "děkuji", "děkuju", "dík"),
    "da, no, sv": ("tak", "takk", "tack", "mange tak", "tusen takk", "tack så mycket"),
    "de": ("danke", "dankeschön", "danke schön", "danke sehr", "vielen dank", "herzlichen dank", "besten dank", "tausend dank"),
    "en": ("thanks", "thank you", "thank u", "thx", "ty", "tysm", "cheers", "much appreciated", "many thanks"),
    "es": ("gracias", "muchas gracias", "mil gracias"),
    "fi": ("kiitos", "kiitti"),
    "fr": ("merci", "mille mercis", "grand merci"),
    "he": ("תודה", "תודה רבה"),
    "hi": ("धन्यवाद", "शुक्रिया"),
    "hu": ("köszönöm", "köszi"),
    "id": ("terima kasih", "makasih"),
    "it": ("grazie", "grazie mille", "mille grazie"),
    "nl": ("bedankt", "dank je", "dank je wel", "dankjewel", "dank u", "dank u wel"),
    "pl": ("dzięki", "dziękuję", "wielkie dzięki"),
    "pt": ("obrigado", "obrigada", "muito obrigado", "muito obrigada", "valeu"),
    "ro": ("mulțumesc", "mersi"),
    "ru": ("спасибо", "большое спасибо", "благодарю"),
    "tr": ("teşekkürler", "teşekkür ederim", "sağ ol", "sağol"),
    "uk": ("дякую", "щиро дякую"),
    "vi": ("cảm ơn", "cám ơn"),
}
"""Language -> phrases that thank, in lower case."""
AROUND: dict[str, tuple[str, ...]] = {
    "cs": ("moc", "super", "skvělé"),
    "da, no, sv": ("så mycket", "så meget", "så mye", "perfekt"),
    "de": ("dir", "ihnen", "sehr", "super", "perfekt", "prima", "klasse", "toll", "passt", "das hat geholfen", "das hilft"),
    "en": (
        *("so much", "a lot", "very much", "a million", "again", "ok", "okay", "great", "perfect", "cool", "awesome", "nice", "excellent"),
        *("wonderful", "amazing", "got it", "that works", "it works", "works", "that helped", "that helps", "very helpful", "that s all"),
        *("that is all", "for your help", "for the help", "for that", "for this"),
    ),
    "es": ("perfecto", "genial", "vale", "por tu ayuda", "por su ayuda"),
    "fr": ("beaucoup", "bien", "infiniment", "parfait", "super", "à toi", "à vous", "pour ton aide", "pour votre aide", "d accord"),
    "it": ("tante", "perfetto", "ottimo", "va bene", "per l aiuto"),
    "nl": ("hartelijk", "heel erg", "top", "perfect"),
    "pl": ("bardzo", "super", "świetnie"),
    "pt": ("perfeito", "ótimo", "pela ajuda"),
    "ru": ("большое", "отлично", "супер", "тебе", "вам"),
    "tr": ("çok", "harika"),
    "uk": ("дуже", "чудово"),
    "vi": ("bạn", "nhiều"),
}
"""Language -> phrases that may stand beside thanks. No one of them doubts the answer."""
UNSPACED_THANKS = (
    *("谢谢你", "谢谢您", "谢谢", "多谢", "感谢", "謝謝你", "謝謝", "多謝"),
    *("ありがとうございます", "ありがとうございました", "ありがとう"),
    *("감사합니다", "고맙습니다", "고마워요", "고마워"),
    *("ขอบคุณครับ", "ขอบคุณค่ะ", "ขอบคุณ"),
)
"""Phrases that thank, in languages that do not separate all words by spaces."""
UNSPACED_AROUND = ("非常", "太", "好的", "很好", "了", "啦", "どうも", "本当に", "助かりました", "정말", "너무", "มาก")
"""Phrases that may stand beside them."""


def is_thanks(text: str, more: Sequence[str] = ()) -> bool:
    """Return whether a user's turn is nothing but thanks. `more` are further phrases that thank."""
    begin = text[:_BEGIN]
    if len(text) > _BEGIN and len(_plain(begin)) > 2 * LONGEST:  # the rest can compose with the last characters of the begin, no others
        return False
    plain = _plain(text)
    if not plain or len(plain) > LONGEST:
        return False
    whole, thanking = _patterns(tuple(more))
    return whole.fullmatch(plain) is not None and thanking.search(plain) is not None


def _plain(text: str) -> str:
    """Return the text in lower case, with one space in place of everything that is no letter, mark or digit."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().translate(_KEPT).split())


class _Kept(dict[int, str]):
    """Code of a character -> the character itself if it is a letter, mark or digit, else a space. Filled as characters occur."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = kept = char if unicodedata.category(char)[0] in "LMN" else " "
        return kept


_KEPT = _Kept()


@lru_cache(maxsize=8)
def _patterns(more: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return (pattern of a text that is nothing but thanks, pattern of one thanking phrase)."""
    thanks = [_plain(one) for phrases in THANKS.values() for one in phrases] + [found for one in more if (found := _plain(one))]
    around = [_plain(one) for phrases in AROUND.values() for one in phrases]
    joined = [_plain(one) for one in UNSPACED_THANKS]
    beside = [_plain(one) for one in UNSPACED_AROUND]
    whole = f"(?:(?:{_any([*thanks, *around])})(?: |$)|(?:{_any([*joined, *beside])}) ?)+"
    return re.compile(whole), re.compile(f"(?<!\\w)(?:{_any(thanks)})(?!\\w)|{_any(joined)}")


def _any(phrases: Sequence[str]) -> str:
    return "|".join(re.escape(one) for one in sorted(set(phrases), key=lambda one: (-len(one), one)))
