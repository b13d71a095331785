"""Lines with one part that must be masked, and lines with nothing to mask, for `benchmarks/privacy.py` and the tests.

⟦ and ⟧ enclose the part that must be masked. ¦ stands in the forms of keys, so that no file of the repository looks as if it held one; it
is no part of the text. All values are made up. The rules were made with the lines of `TUNED` in sight. The lines of `HELD` were written
before the rules, and only their totals were looked at.
"""

from __future__ import annotations

from typing import NamedTuple


class Lines(NamedTuple):
    """Lines that must be masked, and lines that must not."""

    masked: tuple[str, ...]
    left: tuple[str, ...]


TUNED = Lines(
    masked=(
        "you can find me under ⟦jane.doe at gmail dot com⟧, any time",
        "send it to ⟦peterpan at yahoo dot co dot uk⟧",
        "Mail: ⟦m.keller [at] firma [dot] de⟧",
        "my email is ⟦kurt AT posteo DOT de⟧",
        "escríbeme a ⟦lucia.ramos arroba hotmail punto com⟧ por favor",
        "mon adresse : ⟦paul.martin arobase orange point fr⟧",
        "my number is ⟦4155550132⟧",
        "her new number: ⟦2125550187⟧",
        "Meine Nummer: ⟦01711234567⟧",
        "mi número es ⟦612345678⟧",
        "you may dial ⟦6502530000⟧ until five",
        "reach me at ⟦+44 20 7946 0958⟧",
        "ssn: ⟦536904399⟧",
        "social security number ⟦536 90 4399⟧",
        "her BSN is ⟦111222333⟧",
        "personnummer ⟦8112189876⟧",
        "CPF ⟦390.533.447-05⟧",
        "o cpf dele: ⟦39053344705⟧",
        "my SIN is ⟦123 456 782⟧",
        "rijksregisternummer ⟦85073003328⟧",
        "use ⟦8.8.4.4⟧ as DNS",
        "ping ⟦9.9.9.9⟧ and tell me the loss",
        "nameserver ⟦81.2.69.142⟧",
        'DB_PASSWORD="⟦hU7!kk29zz⟧"',
        "the key ⟦AKIA¦Q3EGZT6WXYZABCDE⟧ was leaked",
        "Authorization: Bearer ⟦9f8a7b6c5d4e3f2a1b0c9d8e⟧",
        "mysql://root:⟦pw4root99⟧@10.0.0.3:3306/shop",
        "Bitte an ⟦DE89 3704 0044 0532 0130 00⟧ überweisen",
        "card ⟦5555 5555 5555 4444⟧ expires soon",
        "제 메일은 ⟦minsu77@naver.com⟧ 이고",
    ),
    left=(
        "the lottery numbers are 04 11 23 35 42 49",
        "Lottozahlen: 03 07 12 29 38 41",
        "the moon is 384 400 000 m away",
        "light travels 299 792 458 m/s in vacuum",
        "Es kostet 612 345 678 Euro insgesamt",
        "git clone git@github.com:org/repo.git",
        "git remote set-url origin git@gitlab.example.com:team/sub/project.git",
        "scp dump.sql deploy@build.example.com:/var/backups/",
        "ssh ubuntu@ec2-host.example.com -i key.pem",
        "a basic understanding_of_the_matter is enough",
        "the token max_number_of_new_tokens is an int",
        "pip install sk-learn-contrib-extensions",
        "order number 2125550187 has shipped",
        "tracking number: 4155550132",
        "the prime number 2147483647 is a Mersenne prime",
        "upgrade to 8.8.4.4 of the client",
        "section 1.2.3.4 of the manual",
        "look at the dot com bubble",
        "we met at noon dot your i's",
        "10000000 / 3 = 3333333.33",
        "epoch 1719938400 is in July",
        "SHA 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12",
        "password = getpass.getpass()",
        "api_key = os.environ['API_KEY']",
        "secret: the recipe of the cake",
        "range 1000000 - 2000000 - 3000000",
        "UUID 550e8400-e29b-41d4-a716-446655440000",
        "assert x[1] == 0x7fffffff and y == 2147483648",
        "2025-11-03T08:15:30.123456Z INFO started",
        "private 10.1.2.3, 172.16.0.9 and 192.168.7.7",
    ),
)
"""Lines that the rules were made with."""

HELD = Lines(
    masked=(
        "please mail ⟦tom_baker42 at outlook dot com⟧ instead",
        "contact: ⟦info (at) weinhaus-mueller (dot) at⟧",
        "scrivimi a ⟦giulia.neri chiocciola libero punto it⟧",
        "mój adres to ⟦jan.kowalski małpa wp kropka pl⟧",
        "email ⟦sara{at}startup{dot}io⟧",
        "ping me: ⟦dev.ops+alerts@sub.company.co.jp⟧",
        "his number's ⟦3105550144⟧",
        "Reach us on ⟦2025550173⟧ after 6pm",
        "son numéro est le ⟦0612345678⟧",
        "numer telefonu ⟦512345678⟧",
        "fax ⟦+1 (303) 555-0199⟧",
        "연락은 ⟦010 9876 5432⟧ 로 주세요",
        "Social Security No. ⟦219099999⟧",
        "sofinummer ⟦123456782⟧",
        "PESEL: ⟦44051401359⟧",
        "CPR-nummer ⟦0701614009⟧",
        "codice fiscale ⟦RSSMRA85T10A562S⟧",
        "Aadhaar ⟦2341 2341 2346⟧",
        "RUT ⟦12.345.678-5⟧",
        "身份证 ⟦11010519491231002X⟧",
        "traceroute ⟦1.1.1.1⟧",
        "blocked ip ⟦4.4.8.8⟧ in the firewall",
        "client ⟦2001:4860:4860::8888⟧ connected",
        "export GITHUB_TOKEN=⟦ghp¦_16C7e42F292c6912E7710c838347Ae178B4a⟧",
        "Mon mot de passe : ⟦Soleil#1987⟧",
        "redis://default:⟦x9Kq2mPz⟧@cache.internal:6379",
        "token ⟦eyJ¦hbGciOiJIUzI1NiJ9.eyJ¦zdWIiOiIxMjM0NTY3ODkwIn0.abcdefghijKLMNOP⟧",
        "IBAN ⟦GB29NWBK60161331926819⟧ of mine",
        "Amex ⟦378282246310005⟧",
        "NI number ⟦AB 12 34 56 C⟧",
    ),
    left=(
        "bingo balls 05 17 28 33 46 61 72",
        "los números 06 13 24 35 41 48 salieron ayer",
        "the file has 123 456 789 bytes",
        "Bevölkerung: 834 500 000 Einwohner",
        "distance 149 597 871 km on average",
        "GDP of 612 300 400 USD",
        "git submodule add git@bitbucket.org:team/lib.git vendor/lib",
        "pip install git+ssh://git@github.com/org/pkg.git@v2",
        "rsync -av ./site/ www-data@web.example.org:/srv/www/",
        "origin  hg@code.example.net:tools/build (fetch)",
        "basic introduction_to_machine_learning course",
        "Bearer AuthenticationTokenProviderFactory is the class",
        "token = tokenizer.decode(output_ids)",
        "password: see the wiki page",
        "set client_secret_basic as the token_endpoint_auth_method",
        "invoice number 6502530000 is overdue",
        "serial number: 2025550173",
        "Bestellnummer 0171123456",
        "case 900101 was closed in 2019-04-03",
        "release 9.9.9.9 fixes the bug",
        "see chapter 3.1.4.1 for the proof",
        "arrived at example dot the i's and cross the t's",
        "pi = 3.14159265358979323846",
        "phi 1.6180339887 and e 2.7182818284",
        "the ISBN 978-0-306-40615-7 is out of print",
        "EAN 4006381333931",
        "width: 1920px; height: 1080px; z-index: 2147483647",
        "user_id=123456789 session=987654321",
        "in 1990 1995 2000 2005 2010 the rate fell",
        "@media (min-width: 768px) and @import url(x.css)",
    ),
)
"""Lines that only measure the rules."""


def marked(line: str) -> tuple[str, tuple[int, int] | None]:
    """Return the text of a line, and (start, end) of the part that must be masked."""
    line = line.replace("¦", "")
    start, end = line.find("⟦"), line.find("⟧") - 1
    return line.replace("⟦", "").replace("⟧", ""), (start, end) if start >= 0 else None
