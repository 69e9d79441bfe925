"""The programs that take a secret on their command line, and where it stands there.

    unzip -P x          7z -px          sqlcmd -Px, -P x          net use Z: \\\\host\\share x

Options with a telling name (`--password x`, `-storepass x`) need no row: `names` knows them.
"""

from __future__ import annotations

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
"""By programs: the options whose next word is a secret."""

ATTACHED: dict[str, str] = {
    "mysql, mysqldump, mysqladmin, mysqlimport, mysqlshow, mysqlsh, mariadb, mariadb-dump": "-p",
    "7z, 7za, 7zr, 7zz": "-p",
    "rar, unrar": "-hp -p",
    "sshpass, mongo, mongosh, mongodump, mongorestore, rdesktop, ncftp": "-p",
    "unzip, zip, sqlcmd, osql, bcp, mosquitto_pub, mosquitto_sub, ipmitool": "-P",
    "ldapsearch, ldapmodify, ldapadd, ldapdelete, ldapwhoami, ldappasswd": "-w",
    "xfreerdp, wfreerdp": "/p:",
}
"""By programs: the options with which a secret is one word."""

_NAMING = ("-pass", "-pw", "-psk", "-pin")


def is_attached(word: str, options: tuple[str, ...]) -> bool:
    """Whether a word is one of these options with its value, as `-phunter2` is. `-password` is
    not: as the name of an option, it may be followed by its value."""
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
"""Where no option says it: a word that must be there, and in lower case how a secret (`§`)
stands behind it."""

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
"""What takes a secret that is echoed into it, in lower case."""

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

_WORDS = bytes(
    code if (chr(code).isalnum() and code < 128) or chr(code) in "_-" else 32 for code in range(256)
)


def command_words(low: str) -> set[bytes]:
    """The words of a text in lower case, as names of programs are spelt."""
    return set(low.encode("utf-8", "replace").translate(_WORDS).split())


def attached_options(program: str) -> tuple[str, ...]:
    """The options of a program with which a secret is one word."""
    return tuple(_by_program(ATTACHED, program).split())


def separate_options(program: str) -> tuple[str, ...]:
    """The options of a program whose next word is a secret."""
    return tuple(_by_program(SEPARATE, program).split())


def _by_program(table: dict[str, str], program: str) -> str:
    return " ".join(
        options for programs, options in table.items() if program in programs.split(", ")
    )


NAMES = frozenset(name.encode() for name in FLAGGED)
