"""A fast check whether a text may contain a secret, and the programs that take one as an argument.

not `may_hold_secret`  it has none: one scan of the text
a form of `_CERTAIN`   it may have one
else                   a second check of options and long runs

Most texts pass in microseconds. A text that `masking` would mask is always suspicious here; the
reverse does not hold. The table of programs needs no row for an option with a telling name
(`--password x`, `-storepass x`), because `names` knows it:

    unzip -P x          7z -px          sqlcmd -Px, -P x          net use Z: \\\\host\\share x
"""

from __future__ import annotations

import re

from callgate.core.patterns import Scan, literally

SEPARATE: dict[str, str] = {
    "unzip, zip, zipcloak, zipsplit": "-P",
    "sshpass, twine, cqlsh, rdesktop, evil-winrm, crackmapexec, netexec, nxc": "-p",
    "az login, veracrypt, steghide, useradd, usermod, ncftp, ncftpget, ncftpput": "-p",
    "docker login, podman login, nerdctl login, buildah login, skopeo login, oras login": "-p",
    "registry login, auth login": "-p",
    "podman, buildah, skopeo, nerdctl": "--creds --src-creds --dest-creds",
    "ldapsearch, ldapmodify, ldapadd, ldapdelete, ldapwhoami, ldapcompare": "-w",
    "ldappasswd": "-w -s -a",
    "redis-cli": "-a --pass",
    "mongo, mongosh, mongodump, mongorestore, mongoexport, mongoimport, mongostat": "-p",
    "sqlcmd, osql, bcp, ipmitool, mosquitto_pub, mosquitto_sub": "-P",
    "snmpget, snmpwalk, snmpset, snmpbulkwalk, snmpgetnext, snmptrap": "-A -X -c",
    "openssl": "-k -K -hmac",
    "plink, pscp, psftp": "-pw",
    "security": "-w -p -P",
    "curl": "--oauth2-bearer --pass --proxy-pass --tlspassword --proxy-tlspassword",
    "nuget push": "-k",
    "doctl auth init": "-t",
    "pdftk": "user_pw owner_pw input_pw",
    "nmcli": "password psk wifi-sec.psk",
    "x11vnc": "-passwd",
}
"""Options whose next word is a secret, by program."""

ATTACHED: dict[str, str] = {
    "mysql, mysqldump, mysqladmin, mysqlimport, mysqlshow, mysqlsh, mariadb, mariadb-dump": "-p",
    "7z, 7za, 7zr, 7zz": "-p",
    "rar, unrar": "-hp -p",
    "sshpass, mongo, mongosh, mongodump, mongorestore, rdesktop, ncftp": "-p",
    "unzip, zip, sqlcmd, osql, bcp, mosquitto_pub, mosquitto_sub, ipmitool": "-P",
    "ldapsearch, ldapmodify, ldapadd, ldapdelete, ldapwhoami, ldappasswd": "-w",
    "xfreerdp, wfreerdp": "/p:",
}
"""Options that contain a secret in the same word, by program."""

_NAMING = ("-pass", "-pw", "-psk", "-pin")


def is_attached(word: str, options: tuple[str, ...]) -> bool:
    """Whether a word is one of these options with its value, like `-phunter2`. `-password` is
    not: it may be the name of an option, before its value.
    """
    return word.startswith(options) and not word.lower().startswith(_NAMING)


_S = r"[ \t]+"
_OPTIONS = rf"(?:{_S}-{{1,2}}[\w-]+(?:=\S+)?)*"
_LATER = r"[^\n|;&]{0,200}?"

FORMS: tuple[tuple[str, str], ...] = (
    ("net use", rf"net(?:\.exe)?{_S}use{_S}(?:\S+{_S})?\\\\\S+{_S}(?:/\S+{_S})?(?![/*])§"),
    ("net user", rf"net(?:\.exe)?{_S}user{_S}\S+{_S}(?![/*])§"),
    ("oathtool", rf"oathtool(?:{_S}-\S+(?:{_S}[0-9]\S*)?)*{_S}(?!-)§"),
    ("htpasswd", rf"htpasswd{_S}-(?=\w{{0,8}}b)(?!\w{{0,8}}n)\w{{1,8}}{_S}\S+{_S}\S+{_S}§"),
    ("htpasswd", rf"htpasswd{_S}-(?=\w{{0,8}}b)(?=\w{{0,8}}n)\w{{1,8}}{_S}\S+{_S}§"),
    ("mysql", r"(?<!\S)-p(?=[^\s\"'\\]{4})§"),
    ("mariadb", r"(?<!\S)-p(?=[^\s\"'\\]{4})§"),
    ("openssl passwd", rf"openssl passwd{_OPTIONS}{_S}(?!-)§"),
    ("macopt", r"-macopt[ \t]+[\"']?(?:hex)?key:§"),
    ("pass:", r"-(?:pass(?:in|out)?|k)[ \t]+[\"']?pass:§"),
    ("smbclient", r"-u[ \t]+[\"']?[^\s%\"']{1,64}%§"),
    ("rpcclient", r"-u[ \t]+[\"']?[^\s%\"']{1,64}%§"),
    ("%", r"(?<!\S)(?:-u|--user)[ \t=]+[\"']?[\w.\\-]{1,64}%(?![0-9a-f]{2}\b)§"),
    ("lftp", rf"lftp{_LATER}{_S}-u{_S}[^\s,]{{1,64}},§"),
    ("sqlplus", rf"sqlplus{_OPTIONS}{_S}[\"']?[\w.$]{{1,64}}/(?!@)§"),
    ("wpa_passphrase", rf"wpa_passphrase{_S}(?:\"[^\"\n]{{1,64}}\"|'[^'\n]{{1,64}}'|\S+){_S}§"),
    ("rabbitmqctl", rf"rabbitmqctl{_OPTIONS}{_S}(?:add_user|change_password){_S}\S+{_S}§"),
    ("from-literal", r"--from-literal[= \t]+[\"']?[\w.-]{1,64}=§"),
    ("aws configure set", rf"aws configure set{_S}\S{{0,64}}(?:secret|token)\S{{0,40}}{_S}§"),
    ("login", rf"(?<![\w-])(?:vault|wandb|cargo|railway|snyk){_S}login{_OPTIONS}{_S}(?!-)§"),
    ("vault token", rf"vault token{_S}(?:revoke|lookup|renew){_OPTIONS}{_S}(?!-)§"),
    ("snyk auth", rf"snyk auth{_S}(?!-)§"),
    ("authtoken", rf"(?:add-)?authtoken{_S}(?!-)§"),
    ("bw ", rf"(?<![\w-])bw{_S}(?:unlock|login{_S}\S+@\S+){_S}(?!-)§"),
    ("mc alias set", rf"mc alias set{_S}\S+{_S}\S+{_S}\S+{_S}§"),
    ("http-basic", rf"config{_OPTIONS}{_S}http-basic\.\S+{_S}\S+{_S}§"),
    ("pypi-token", rf"config{_OPTIONS}{_S}pypi-token\.\S+{_S}§"),
    ("rclone obscure", rf"rclone obscure{_S}§"),
    ("keyctl", rf"keyctl{_S}(?:add|padd){_S}\S+{_S}\S+{_S}§"),
    ("--encrypt", rf"qpdf{_LATER}--encrypt{_S}(?!-)§"),
    ("identified", r"identified (?:with \w+ )?by (?:password )?(?=[\"'])§"),
    ("password", r"password[ \t]+(?=[\"'][^\"'\r\n]+[\"'])§"),
    ("password", r"(?:login|user|account|machine)\s+\S+\s+password\s+§"),
    ("setx", rf"setx{_S}\w{{0,40}}%STEM%\w{{0,40}}{_S}§"),
    ("env ", rf"(?:^|\n)env{_S}\w{{0,40}}%STEM%\w{{0,40}}{_S}§"),
)
"""Forms without an option: a word that must occur, and a pattern, in lower case, of the text before
the secret (`§`).
"""

READS_STDIN = (
    "sudo -s",
    "sudo --stdin",
    "-stdin",
    "--stdin",
    "chpasswd",
    "cryptsetup",
    "kinit",
    "passphrase-fd",
    "passphrase-file=-",
    "fd:0",
    "-pass stdin",
    "su -c",
    "smbpasswd -s",
    "vncpasswd -f",
    "-s -",
    "passwd",
    "ansible-vault",
    "gh auth",
    "htpasswd -i",
)
"""Programs and options that read a secret from standard input, in lower case."""

LISTED = (
    *("net", "oathtool", "vault", "cargo", "bw", "mc", "lftp", "smbclient", "rpcclient"),
    *("rabbitmqctl", "sqlplus"),
)
"""Programs that take a secret without an option, where a command is a list of words."""

FLAGGED = frozenset(
    name.split()[0] for table in (SEPARATE, ATTACHED) for key in table for name in key.split(", ")
)
"""First words of the programs whose options have no telling name."""
MARKED = (
    "oathtool",
    "rabbitmqctl",
    "mc alias",
    "rclone ",
    "sqlplus",
    "from-literal",
    "http-basic",
    "/p:",
    "<<<",
)
"""Words that a secret may follow without an option, and without a telling name."""

_WORD_BYTES = bytes(
    code if (chr(code).isalnum() and code < 128) or chr(code) in "_-" else 32 for code in range(256)
)


def command_words(low: str) -> set[bytes]:
    """Return the words of a text in lower case, like names of programs."""
    return set(low.encode("utf-8", "replace").translate(_WORD_BYTES).split())


def attached_options(program: str) -> tuple[str, ...]:
    """Return the options of a program that contain a secret in the same word."""
    return tuple(_by_program(ATTACHED, program).split())


def separate_options(program: str) -> tuple[str, ...]:
    """Return the options of a program whose next word is a secret."""
    return tuple(_by_program(SEPARATE, program).split())


def _by_program(table: dict[str, str], program: str) -> str:
    return " ".join(
        options for programs, options in table.items() if program in programs.split(", ")
    )


NAMES = frozenset(name.encode() for name in FLAGGED)


_WORDS = (
    "pass",
    "secret",
    "token",
    "key",
    "cred",
    "bearer",
    "cookie",
    "pw",
    "psk",
    "otp",
    "hmac",
    "jwt",
    "sessid",
    "sessionid",
    "\x1b",
    "contrase",
    "kennwort",
    "clave",
    "mdp",
    "senha",
    "cvv",
    "cvc",
    "private-l",
    "webhook",
    "googleapis.com/v1/sp",
    "telegram.org/bot",
    "sentry.io/",
    "ifttt.com/use",
    "@tcp(",
    "@unix(",
    *MARKED,
)
_RUN_CHARACTERS = "A-Za-z0-9_+~%-"
_HIDDEN_OR_WIDE = "[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\uff01-\uff5e\u0130]"
ESCAPE = "\\u00"
"""Escape in JSON. Escaped characters may be invisible where they are shown, and split a name."""
_NAME_ENDS = (
    "(?:[^a-z]|$|val|data|string|plain|raw|b64|base64|hex|enc|prod|dev|stag|test|live|old|new"
    "|current|prev|default|main|backup|confirm|again|repeat|header|json)"
)
"""End of a secret's name, or the form that follows it, in lower case."""
_LONG_S = "\u017f"
_CAMEL_PIN = "[a-z]P(?:in|IN)"
_NO_NAME = "(?:^|[^a-z0-9_-])"
_PROGRAM_OPTION = r"-(?:h?p|w|[akxctsb][ \t\"'=,\\]|hmac|-creds|-src-c|-dest-c)"
_CERTAIN_FORMS = [
    *literally(_WORDS),
    "://[^/\\s\"'`<>\\\\]*@",
    "auth(?:[^o]|$|o(?:[^r]|$)|ori)",
    ":(?:[0-9]{4,5}|\\*):[^\\s:]+:[^\\s:]+:",
    f"(?:^|[^a-z])pin{_NAME_ENDS}",
    "(?:pin|curity|cation|time|[m2]fa|sms|login|access|unlock)[ ._-]*code",
    f"sig(?:nature)?{_NAME_ENDS}",
    "basic(?:[ \t]+|%20)[a-z0-9._~+/=-]{8}",
    "hooks?\\.",
    "identified[ \t]",
    "[ \t]login[ \t]",
    "net(?:\\.exe)?[ \t]+use",
    "bw[ \t]+unlock",
    '(?:^|[\n"])env[ \t]',
    "setx[ \t]",
    "(?:echo|printf)[ \t][^\n]*\\|",
    "\\|[^\n]*(?:cryptsetup|kinit|vault)",
    f"[/\"'](?:{'|'.join(LISTED)})[\"']",
    f"{_NO_NAME}-(?:u|a[ \t]|b[^\r\n]*=)",
    "-u[ \t]|--(?:proxy-|http-)?user|--encrypt",
]
_CERTAIN = Scan(_CERTAIN_FORMS)
"""Search in a text in lower case."""
_POSSIBLE_FORMS = [
    *_CERTAIN_FORMS,
    f"{_NO_NAME}{_PROGRAM_OPTION}",
    f"[{_RUN_CHARACTERS}]{{16}}",
    _HIDDEN_OR_WIDE,
    *literally([ESCAPE]),
]
_POSSIBLE = Scan([f"(?i:{'|'.join(_POSSIBLE_FORMS)})", _CAMEL_PIN, _LONG_S])
"""All forms that `is_likely` searches, ignoring case. U+212A becomes k in lower case; U+0130, whose
lower case contains an i, and U+017F, which is an s if case is ignored, are separate forms.
"""

may_hold_secret = _POSSIBLE.finds
"""Whether a text, or its JSON, contains anything that identifies a secret."""


def suspicious(text: str) -> bool:
    """Whether a text could contain a secret at all."""
    return _POSSIBLE.finds(text) and is_likely(text)


def is_likely(text: str) -> bool:
    """Check a text that may contain a secret in detail."""
    low = text.lower()
    return (
        _CERTAIN.finds(low)
        or ("-" in low and _has_option(low))
        or has_long_run(text)
        or ("P" in text and re.search(_CAMEL_PIN, text) is not None)
        or (not text.isascii() and _HIDDEN.search(text) is not None)
    )


_OPTION = re.compile(rf"(?<![^\s\"',]){_PROGRAM_OPTION}")


def _has_option(low: str) -> bool:
    """Whether the text has an option and a program that takes a secret with it."""
    return _OPTION.search(low) is not None and (
        "mysql" in low or "mariadb" in low or not NAMES.isdisjoint(command_words(low))
    )


_RUNS = bytes(
    ord("a" if re.fullmatch(f"[{_RUN_CHARACTERS}]", chr(code)) else " ") for code in range(256)
)
_LONG = b"a" * 16
_LONG_RUN = re.compile(f"[{_RUN_CHARACTERS}]{{16,}}")
_UPPER_OR_DIGIT = re.compile("[A-Z0-9]")
_HIDDEN = re.compile(f"{_HIDDEN_OR_WIDE}|{_LONG_S}")


def has_long_run(text: str) -> bool:
    """Whether there is a long run of characters that is not a plain word, like a token."""
    if _LONG not in text.encode("utf-8", "replace").translate(_RUNS):
        return False
    runs = _LONG_RUN.finditer(text)
    return any(_UPPER_OR_DIGIT.search(text, *run.span()) for run in runs)
