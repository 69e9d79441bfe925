"""Redaction of text: no secret comes through, and nothing else is touched."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.redaction.names import MASK
from callgate.redaction.suspicion import suspicious
from callgate.redaction.texts import LONGEST, redact, thoroughly

CORPUS = json.loads((Path(__file__).parents[2] / "corpus/redaction.json").read_text())


def assert_hidden(text: str, secrets: list[str], kept: list[str]) -> None:
    shown = redact(text)
    for secret in secrets:
        pieces = {secret[at : at + 12] for at in range(max(1, len(secret) - 11))}
        assert not [piece for piece in pieces if piece in shown], shown
    for piece in kept:
        assert piece in shown
    assert redact(shown) == shown


def named(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=f"{case['id']}-{case['kind']}") for case in cases]


@pytest.mark.spec("T43")
@pytest.mark.parametrize("case", named([c for c in CORPUS["secrets"] if not c.get("hard")]))
def test_a_secret_does_not_come_through(case: dict[str, Any]) -> None:
    secrets = ["".join(halves) for halves in case["must_not_contain"]]
    assert_hidden("".join(case["text"]), secrets, case.get("must_keep", []))


@pytest.mark.spec("T43")
@pytest.mark.parametrize("case", named([c for c in CORPUS["secrets"] if c.get("hard")]))
def test_a_secret_that_is_hard_to_see_does_not_come_through(case: dict[str, Any]) -> None:
    secrets = ["".join(halves) for halves in case["must_not_contain"]]
    assert_hidden("".join(case["text"]), secrets, case.get("must_keep", []))


@pytest.mark.parametrize("case", named(CORPUS["benign"]))
def test_a_text_without_a_secret_comes_back_as_it_was(case: dict[str, Any]) -> None:
    assert redact(case["text"]) == case["text"]


# The same kinds, made anew.

LETTERS = string.ascii_letters
LOWER_HEX = "0123456789abcdef"
CAPITALS = string.ascii_uppercase + string.digits
ALPHABETS = {
    "a": LETTERS + string.digits,
    "w": LETTERS + string.digits + "_-",
    "x": LOWER_HEX,
    "u": CAPITALS,
    "b": LETTERS + string.digits + "+/",
    "l": LETTERS,
    "d": string.digits,
}


def fresh(pattern: str, seed: int = 0) -> str:
    """`ghp_{a36}`: literal text, and runs of random characters of an alphabet."""
    chance = random.Random(f"{pattern}{seed}")
    made = []
    for piece in pattern.replace("{", "\0{").replace("}", "}\0").split("\0"):
        if piece.startswith("{"):
            made.append("".join(chance.choices(ALPHABETS[piece[1]], k=int(piece[2:-1]))))
        else:
            made.append(piece)
    return "".join(made)


TOKENS = [
    "AKIA{u16}",
    "ASIA{u16}",
    "ghp_{a36}",
    "gho_{a36}",
    "ghu_{a36}",
    "ghs_{a36}",
    "ghr_{a36}",
    "github_pat_{a22}_{a59}",
    "glpat-{w20}",
    "glpat-{w27}.01.{a9}",
    "glrt-{w20}",
    "gldt-{w20}",
    "glptt-{x40}",
    "xoxb-{d12}-{d12}-{a24}",
    "xoxp-{d12}-{d12}-{d12}-{x32}",
    "xoxe.xoxp-1-{a60}",
    "xapp-1-{u11}-{d13}-{x64}",
    "sk_live_{a24}",
    "sk_test_{a24}",
    "rk_live_{a24}",
    "whsec_{a32}",
    "sk-{a48}",
    "sk-proj-{w48}",
    "sk-svcacct-{w48}",
    "sk-ant-api03-{w90}",
    "sk-or-v1-{x64}",
    "AIza{w35}",
    "ya29.{w80}",
    "1//0{w60}",
    "GOCSPX-{w28}",
    "SG.{w22}.{w43}",
    "SK{x32}",
    "AC{x32}",
    "key-{x32}",
    "{x32}-us12",
    "npm_{a36}",
    "pypi-AgEIcHlwaS5vcmc{w60}",
    "dckr_pat_{w27}",
    "hf_{l34}",
    "NRAK-{u27}",
    "sq0atp-{w22}",
    "sq0csp-{w43}",
    "EAAA{w60}",
    "{d10}:AA{w33}",
    "lin_api_{a40}",
    "lin_oauth_{x64}",
    "ntn_{a46}",
    "secret_{a43}",
    "pat{a14}.{x64}",
    "ATATT3xFfGF0{w100}=1A2B3C4D",
    "glsa_{a32}_{x8}",
    "glc_{b80}",
    "dp.pt.{a43}",
    "dp.st.dev.{a40}",
    "sbp_{x40}",
    "sb_secret_{w22}_{a8}",
    "dapi{x32}",
    "gsk_{a52}",
    "r8_{a37}",
    "pplx-{a48}",
    "xai-{a80}",
    "nvapi-{w64}",
    "abc8Q~{w34}",
    "v1.0-{x24}-{x146}",
    "figd_{w40}",
    "pul-{x40}",
    "rubygems_{x48}",
    "shpat_{x32}",
    "shpss_{x32}",
    "hvs.{w90}",
    "s.{a24}",
    "pscale_tkn_{w43}",
    "dop_v1_{x64}",
    "AGE-SECRET-KEY-1{u58}",
    "cio{a32}",
    "PMAK-{x24}-{x34}",
    "tskey-auth-{a16}-{a32}",
    "sntrys_{a100}",
    "sgp_{x40}",
    "lsv2_pt_{x32}_{x10}",
    "{a14}.atlasv1.{w67}",
    "sha256~{w43}",
    "eyJ{w33}.eyJ{w80}.{w43}",
    "LTAI{a20}",
    "vcp_{a56}",
    "nfp_{a36}",
    "xkeysib-{x64}-{a16}",
    "sk.eyJ{w80}.{w22}",
    "CCIPAT_{a22}_{x40}",
    "tfp_{w59}",
    "AKCp{a69}",
    "bkua_{x40}",
    "CFPAT-{w43}",
    "dt0c01.{u24}.{u64}",
    "M{a23}.{w6}.{w38}",
    "$6$saltsalt${a86}",
    "{a64}",
    "{b64}",
]
FRAMES = [
    "%s",
    "Using key %s for the request",
    '["%s"]',
    "error: 401 Unauthorized (%s)",
    "curl -H 'X-Auth: %s' https://api.example.com/v1",
    "token=%s\nnext line",
    '{"a": "{\\"b\\": \\"%s\\"}"}',
    "\x1b[1m%s\x1b[0m",
]


@pytest.mark.spec("T43")
@pytest.mark.parametrize("token", TOKENS)
def test_a_token_is_known_by_its_shape_wherever_it_stands(token: str) -> None:
    made = fresh(token)
    for frame in FRAMES:
        assert_hidden(frame % made, [made], [])


ASSIGNMENTS = [
    "export DB_PASSWORD=%s",
    'export API_KEY="%s"',
    "set SECRET_KEY=%s",
    "DB_PASS: %s",
    '  password: "%s"',
    "secretKey = '%s'",
    '"client_secret": "%s"',
    "{'token': '%s'}",
    "password => '%s'",
    'password := "%s"',
    "let token = `%s`;",
    'const apiKey = "%s";',
    "SECRET_KEY = r'%s'",
    "secret = b'%s'",
    'password: str = "%s"',
    "password='''%s'''",
    "--token=%s",
    "--token %s",
    "--api-key '%s'",
    "-password %s",
    '["--token", "%s"]',
    "['--password', '%s']",
    "args: [--password, %s]",
    "PGPASSWORD=%s psql",
    "MYSQL_PWD=%s mysql",
    "machine h login bob password %s",
    "machine h\n  login bob\n  password %s\n",
    "<password>%s</password>",
    "<ns:secret a='b'>%s</ns:secret>",
    '<add key="ApiSecret" value="%s"/>',
    '<property name="password" value="%s"/>',
    '<input value="%s" type="password">',
    "- name: API_KEY\n  value: %s\n",
    '{"name": "API_KEY", "value": "%s"}',
    '{"value": "%s", "name": "API_KEY"}',
    '{"key": "Authorization", "value": "Bearer %s"}',
    "<key>APIToken</key>\n  <string>%s</string>",
    "Server=x;User Id=sa;Password=%s;Encrypt=True",
    "AccountName=a;AccountKey=%s;EndpointSuffix=core",
    "host=db password=%s user=bob",
    "jdbc:postgresql://h/db?user=bob&password=%s",
    'os.environ["API_KEY"] = "%s"',
    "headers['X-Api-Key'] = '%s'",
    'Config(token="%s", debug=True)',
    "f(password=SecretStr('%s'))",
    "aws_secret_access_key = %s",
    "password%%3D%s%%26user%%3Dbob",
    "%%22token%%22%%3A%%22%s%%22",
    '{\\"token\\": \\"%s\\"}',
    '"{\\\\\\"token\\\\\\": \\\\\\"%s\\\\\\"}"',
    "&quot;password&quot;: &quot;%s&quot;",
    "\\u0022password\\u0022:\\u0022%s\\u0022",
    "password: |\n  %s\n",
    "secret: >-\n  %s\nnext: 1",
    "secrets:\n  db: %s\n",
    '{"secrets": {"db": "%s"}}',
    "password: !!str %s",
    "CREATE USER bob IDENTIFIED BY '%s'",
    "ALTER USER bob WITH PASSWORD '%s';",
    'echo "%s" | docker login --password-stdin',
    "echo %s | sudo -S ls",
    "openssl enc -pass pass:%s",
    "ENV API_KEY %s",
    'setx API_KEY "%s"',
    "$Env:API_KEY = '%s'",
    "curl -u bob:%s https://x",
    "curl --user=bob:%s",
    "curl -ubob:%s x",
    "http -a bob:%s GET x",
    "mysql -u root -p%s db",
    "sshpass -p '%s' ssh h",
    "redis-cli -a %s ping",
    "docker login -u bob -p %s",
    "smbclient //h/s -U bob%%%s",
    "//r.npmjs.org/:_authToken=%s",
    "npm config set //r.npmjs.org/:_authToken %s",
    "git config github.token %s",
    "_auth=%s",
    "spring.datasource.password=%s",
    "client-key-data: %s",
    "TOKEN_PROD=%s",
    "API_KEY_2: %s",
    "newPassword=%s",
    "passwordHash: %s",
    'token "%s" is expired',
    "The API key is %s",
    "Your password is: %s",
    "password was set to %s",
    "token[%s]",
    "password\u200b=%s",
    "ｐａｓｓｗｏｒｄ＝%s",
    "\x1b[32mpassword\x1b[0m: %s",
    "db:5432:app:bob:%s",
    "user:%s@tcp(127.0.0.1:3306)/db",
    "Authorization: Token %s",
    "Authorization: SSWS %s",
    'Authorization: Digest username="bob", nonce="n", response="%s"',
    "X-Vault-Token: %s",
    "Ocp-Apim-Subscription-Key: %s",
    "DD-APPLICATION-KEY: %s",
    "x-functions-key: %s",
    "Cookie: theme=dark; sessionid=%s",
    "Set-Cookie: JSESSIONID=%s; Path=/; HttpOnly",
    'Content-Disposition: form-data; name="password"\r\n\r\n%s\r\n--b',
    "Bearer %s",
    "Basic %s",
    "-----BEGIN RSA PRIVATE KEY-----\n%s",
    "%s\n-----END OPENSSH PRIVATE KEY-----",
    "https://hooks.slack.com/services/T0/B0/%s",
    "sig=%s",
    "key: %s",
    "X-Goog-Signature=%s",
]


@pytest.mark.spec("T43")
@pytest.mark.parametrize("frame", ASSIGNMENTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_value_is_known_by_its_name_however_it_is_written(frame: str, seed: int) -> None:
    made = fresh("{a24}", seed)
    assert_hidden(frame % made, [made], [])


@pytest.mark.parametrize(
    "frame",
    [
        "password=%s",
        '"password": "%s"',
        "--password %s",
        "<password>%s</password>",
        "DB_PASS: %s",
        "postgres://bob:%s@db/app",
        "curl -u bob:%s https://x",
        '{\\"secret\\": \\"%s\\"}',
    ],
)
@pytest.mark.parametrize("secret", ["hunter2", "correct", "p%40ss", "pässwörd", "1234567", "a-b_c"])
def test_under_a_plain_name_even_a_weak_password_is_hidden(frame: str, secret: str) -> None:
    assert secret not in redact(frame % secret)


COMMANDS = [
    "unzip -P %s a.zip",
    "unzip -o -P '%s' a.zip -d out",
    "unzip -P%s a.zip",
    "zip -r -P %s a.zip .",
    "7z x -p%s a.7z",
    "/usr/bin/7za a -p%s -mhe a.7z x",
    "rar a -hp%s a.rar x",
    "unrar x -p%s a.rar",
    "keytool -list -storepass %s",
    "keytool -importkeystore -srcstorepass %s -deststorepass x",
    "jarsigner -keypass %s a.jar k",
    "openssl enc -d -k %s",
    "openssl enc -aes-256-cbc -k '%s' -in a",
    "openssl rsa -passin pass:%s -in k",
    "openssl passwd -6 %s",
    "openssl dgst -hmac %s f",
    "oathtool --totp -b %s",
    "oathtool -b --totp -d 6 '%s'",
    "curl -b 'sid=%s; a=b' https://x",
    "curl --cookie sid=%s https://x",
    "curl --oauth2-bearer %s https://x",
    "curl -u 'bob:%s' https://x",
    "curl -H 'Authorization: Bearer %s' https://x",
    "net use Z: \\\\host\\share %s /user:bob",
    "net use \\\\host\\share /user:bob %s",
    "net user bob %s /add",
    "mysql -uroot -p%s db",
    "sshpass -p %s ssh h",
    "PGPASSWORD=%s psql -h h",
    "gpg --batch --passphrase %s -d f",
    "docker login -u bob -p %s r.example",
    "helm registry login -u bob -p %s r",
    "az login --service-principal -u a -p %s",
    "vault login %s",
    "aws configure set aws_secret_access_key %s",
    "kubectl --token=%s get pods",
    "kubectl get pods --token %s",
    "kubectl create secret generic s --from-literal=a=%s",
    "htpasswd -bc f bob %s",
    "htpasswd -nb bob %s",
    "ldapsearch -x -D cn=a -w %s -b dc=x",
    "smbclient //h/s -U bob%%%s",
    "rpcclient -U bob%%%s h",
    "mount -t cifs //h/s /m -o username=bob,password=%s",
    "wget --password=%s ftp://h/f",
    "wget ftp://bob:%s@h/f",
    "redis-cli -h h -a %s ping",
    "redis-cli --pass %s",
    "mongosh -u bob -p %s",
    "mongodump --host h -p %s",
    "RESTIC_PASSWORD=%s restic backup",
    "export BORG_PASSPHRASE='%s'",
    "ansible-playbook -e ansible_become_pass=%s p.yml",
    "echo -n %s | cryptsetup open /dev/x y",
    "echo 'bob:%s' | chpasswd",
    "echo %s | sudo -S ls",
    "sudo -S ls <<< %s",
    "printf '%%s' %s | docker login --password-stdin",
    "echo %s | passwd --stdin bob",
    "sqlcmd -S h -U sa -P %s",
    "sqlplus scott/%s@db",
    "mosquitto_pub -h h -P %s -t t -m m",
    "snmpwalk -v3 -A %s -X y h",
    "ipmitool -H h -P %s power on",
    "xfreerdp /v:h /u:bob /p:%s",
    "plink -pw %s bob@h",
    "lftp -u bob,%s h",
    "wpa_passphrase home %s",
    "nmcli dev wifi connect home password %s",
    "security unlock-keychain -p %s",
    "rabbitmqctl add_user bob %s",
    "twine upload -u bob -p %s dist/*",
    "cargo login %s",
    "ngrok config add-authtoken %s",
    "pdftk a output b user_pw %s",
    '["unzip", "-P", "%s", "a.zip"]',
    "bash -c 'unzip -P %s a.zip'",
    '{"command": "7z x -p%s a.7z"}',
]


@pytest.mark.spec("T43")
@pytest.mark.parametrize("frame", COMMANDS)
@pytest.mark.parametrize("secret", ["hunter2", "Sommer2024", "swordfish", "p4ss.w0rd"])
def test_a_password_on_a_command_line_is_hidden(frame: str, secret: str) -> None:
    shown = redact(frame % secret)
    assert secret not in shown
    assert redact(shown) == shown


ATTACHED = [
    ("mysql -uroot -p%s ", "shop"),
    ("mysqldump -u root -p'%s' ", "shop orders"),
    ("sudo mariadb -p%s -h db ", "shop < dump.sql"),
    ("7z x -p%s ", "a.7z out"),
    ("rar a -hp%s ", "a.rar notes"),
    ("unzip -P%s ", "a.zip notes.txt"),
    ("ldapsearch -x -w%s ", "filter"),
    ("sshpass -p%s ", "ssh host"),
    ("mongo -p%s ", "shop"),
    ("ipmitool -P%s ", "chassis status"),
    ("ncftp -p%s ", "host"),
]


@pytest.mark.parametrize("secret", ["hunter2", "secret1", "mytoken", "my-secret", "a_password_9"])
@pytest.mark.parametrize(("command", "arguments"), ATTACHED)
def test_the_words_behind_an_attached_password_stay(command: str, arguments: str, secret: str) -> None:
    shown = command % "[REDACTED]" + arguments
    assert redact(command % secret + arguments) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize("program", ["mysql", "7z x", "sshpass", "unzip", "mongo", "tool"])
@pytest.mark.parametrize("option", ["-password", "-passwd", "-pass", "-pwd", "--password"])
def test_an_option_with_a_telling_name_still_hides_the_next_word(program: str, option: str) -> None:
    assert "hunter2" not in redact(f"{program} {option} hunter2 x")


def test_an_attached_value_counts_only_with_a_program_that_has_the_option() -> None:
    assert redact("tool -psecret hunter2") == "tool -psecret [REDACTED]"
    assert redact("mysql shop; tool -psecret hunter2") == "mysql shop; tool -psecret [REDACTED]"


SENTENCES = [
    "my password is: %s",
    "My password is %s.",
    "the root password is: %s",
    "the password is '%s'",
    "password is now %s",
    "Passwort: %s",
    "mein Passwort ist %s",
    "das Kennwort lautet: %s",
    "Kennwort: %s",
    "mon mot de passe est %s",
    "mot de passe : %s",
    "le mot de passe est: %s",
    "mi contraseña es %s",
    "Contraseña: %s",
    "minha senha é %s",
    "pass: %s",
    "pw: %s",
    "the wifi password for the office is: %s",
    "our admin password is still %s",
    "pwd=%s",
    "your api key is: %s",
    "my password for github is %s",
    "PASSWORD IS: %s",
]


@pytest.mark.spec("T43")
@pytest.mark.parametrize("frame", SENTENCES)
@pytest.mark.parametrize("secret", ["hunter2", "Sommer2024!", "swordfish"])
def test_a_password_that_somebody_tells_is_hidden(frame: str, secret: str) -> None:
    shown = redact(frame % secret)
    assert secret.rstrip("!") not in shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "frame",
    [
        "PIN=%s",
        "the PIN is %s",
        "pin: %s",
        "SIM_PIN=%s",
        "pin code: %s",
        "my otp is %s",
        "OTP %s",
        "cvv: %s",
        "verification code: %s",
        "Your security code is %s.",
        "die PIN lautet %s",
        "le code pin est %s",
        "el PIN es %s",
        '{"pin": "%s"}',
        "--pin %s",
        "card 4111, CVC %s",
    ],
)
def test_a_number_that_opens_something_is_hidden(frame: str) -> None:
    assert "4711" not in redact(frame % "4711")


@pytest.mark.parametrize(
    "frame", ["%s", "use %s for it", "key %s", "curl https://x/?k=%s", '["%s"]', "-H 'X-Auth: %s'"]
)
@pytest.mark.parametrize("kind", ["{x32}", "AB{x30}"])
def test_a_bare_key_of_128_bits_is_hidden(frame: str, kind: str) -> None:
    made = fresh(kind) if kind == "{x32}" else fresh("{x32}").upper()
    assert_hidden(frame % made, [made], [])


PLAIN = [
    "commit 4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "4b825dc642cb6eb9a060e54bf8d69288fbee4904\trefs/heads/main",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  empty.txt",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "d41d8cd98f00b204e9800998ecf8427e  a.txt",
    "MD5 (a.txt) = d41d8cd98f00b204e9800998ecf8427e",
    "md5: d41d8cd98f00b204e9800998ecf8427e",
    "/var/cache/d41d8cd98f00b204e9800998ecf8427e.json",
    "etag: d41d8cd98f00b204e9800998ecf8427e",
    "trace_id=4bf92f3577b34da6a3ce929d0e0e4736",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "the password is wrong",
    "the password is required",
    "the password is stored in the vault",
    "Password is too short",
    "the token is expired",
    "my password is rejected",
    "pin the version to 1.2",
    "pin numpy==1.26.4",
    "GPIO pin 13",
    "LED_PIN = 13",
    "ping -c 4 example.com",
    "mapping: 12345",
    "exit code: 1234",
    "status_code=2004",
    "error code 1234",
    "zip -r out.zip src",
    "docker run -p 8080:80 img",
    "mkdir -p a/b; unzip a.zip",
    "7z x a.7z -oout",
    "openssl version",
    "unzip -l a.zip | grep -p x",
    "ssh -p 2222 bob@host",
    "tar -P -xf a.tar",
    "curl -b cookies.txt https://x",
    "cp -p a b",
    "net use",
    "git push -u origin main",
    "echo hi | cat",
    "echo done | tee log",
    "vault status",
    "oathtool --version",
    "az vm list -o table",
    "mot de passe oublié ?",
    "das Passwort ist falsch",
    "la contraseña es incorrecta",
    "Kennwort vergessen?",
]


@pytest.mark.parametrize("text", PLAIN)
def test_checksums_commits_and_ordinary_commands_are_left_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("scheme", ["postgresql", "redis", "mongodb+srv", "amqp", "https", "smtp"])
@pytest.mark.parametrize("userinfo", ["admin:%s", ":%s", "oauth2:%s", "x-access-token:%s", "%s"])
def test_a_url_keeps_its_host_and_loses_its_password(scheme: str, userinfo: str) -> None:
    made = fresh("{a24}")
    assert_hidden(f"{scheme}://{userinfo % made}@db.internal:5432/app", [made], ["db.internal"])


@pytest.mark.parametrize(
    "name",
    [
        "key",
        "api_key",
        "apikey",
        "access_token",
        "client_secret",
        "refresh_token",
        "sig",
        "auth",
        "Signature",
        "X-Amz-Signature",
        "X-Amz-Security-Token",
        "password",
        "jwt",
        "hmac",
    ],
)
def test_a_query_loses_one_parameter_and_keeps_the_others(name: str) -> None:
    made = fresh("{a32}")
    text = f"GET https://api.example.com/v1/items?page=2&{name}={made}&limit=10 HTTP/1.1"
    assert_hidden(text, [made], ["page=2", "limit=10", "api.example.com"])


HARMLESS = [
    "HEAD detached at 4adef67",
    "git@github.com:org/repo.git",
    "https://user@host/path",
    "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=",
    "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDQtxtVmpsUaJGcZh0",
    "sess_01HZXCV7Q8K9M2N3P4R5S6T7V8",
    "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
    "token_count: 128",
    "tokens: 1234",
    "input_tokens=10 output_tokens=20",
    "password:",
    "Password: must be at least 8 characters",
    "Secret: see the vault",
    "public_key: abc",
    "sort_key: created_at",
    "cache_key=user:1234",
    "api_key: your-api-key-here",
    'token: "$TOKEN"',
    "password=%PASSWORD%",
    '"password": null',
    "token: <token>",
    "Authorization: Bearer <token>",
    'curl -H "Authorization: Bearer ${TOKEN}" https://x',
    "Bearer authentication is used",
    "token = get_token()",
    "token = self.token",
    "f(password=password)",
    "apiKey: string;",
    "def login(user: str, password: str) -> None:",
    "password: Optional[str] = None",
    'api_key = os.getenv("API_KEY")',
    "const token = process.env.TOKEN;",
    "token: ENV['TOKEN']",
    "const secret = await getSecret('name')",
    '"required": ["password"]',
    "sk-...",
    "xoxb-your-token",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA\n-----END PUBLIC KEY-----",
    "-----BEGIN PRIVATE KEY-----",
    "cat ~/.aws/credentials",
    "src/auth/token.py",
    "--token TOKEN",
    "--password-file /run/secrets/db",
    "usage: x [--password PASSWORD]",
    "TOKEN_FILE=/run/token",
    "PASSWORD_POLICY=strict",
    "token_url=https://x/oauth/token",
    "auth_type: oauth2",
    "auth: true",
    "author: Bob Smith",
    "keyboard: us",
    "keys: [a, b]",
    "monkey=1",
    "pad_token: <pad>",
    "page_token=CAUQAA",
    "Set-Cookie header missing",
    "SyntaxError: Unexpected token: punc",
    "error: invalid token: unexpected end of input",
    "Token::new(x)",
    "tokens[0] = 5",
    "if (password !== confirm) {",
    "password ? a : b",
    "secrets: inherit",
    "credentials: same-origin",
    "pass: 12 fail: 3",
    "--- PASS: TestLogin (0.00s)",
    "bypass=true",
    "classpath=/a/b",
    "2001:0db8:85a3:0000:0000:8a2e:0370:7334",
    "0x52908400098527886E0F7030069857D2E4169EE7",
    "https://docs.google.com/document/d/1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms/edit",
    "fileId: 1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms",
    "getElementsByClassNameAndAttributeValue",
    "test_a_denied_write_never_starts_2026",
    "com.example.MyVeryLongClassNameForTesting123",
    "/usr/lib/x86_64-linux-gnu/libQt5Core.so.5.15.2",
    "mkdir -p src/new/dir",
    "ssh -p 2222 host",
    "docker run -p 127.0.0.1:8080:80 -u root:root img",
    "git push -u origin main",
    "curl -u https://x",
    "password_hash = bcrypt.hash(password)",
    "--secret-id prod/db",
    "--auth-type basic",
    "from auth import token",
    "| token | string | required |",
    "Vec<Token>",
    "<password/>",
    "<auth>basic</auth>",
    '<label for="password">Password</label>',
    "grant_type=password&scope=read",
    "Signature: (x: int) -> str",
    "otp_required: false",
    "MIN_PASSWORD=8",
    "auth=none",
    "",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_speaks_of_secrets_is_left_alone(text: str) -> None:
    assert redact(text) == text


# Any text at all.

FRAGMENTS = [
    "password",
    "token",
    "api_key",
    "Authorization",
    "Bearer ",
    "key",
    "sig",
    "Cookie",
    "secret",
    "=",
    ":",
    ": ",
    " ",
    "\n",
    '"',
    "'",
    '\\"',
    '\\\\\\"',
    "`",
    "{",
    "}",
    "[",
    "]",
    ", ",
    ";",
    "&",
    "://",
    "@",
    "user:",
    "-u ",
    "--password ",
    "<password>",
    "</password>",
    "value",
    "name",
    "-----BEGIN RSA PRIVATE KEY-----",
    "-----END RSA PRIVATE KEY-----",
    "MIIEpAIBAAKCAQEA7",
    MASK,
    "${X}",
    "<X>",
    "{{x}}",
    "***",
    "None",
    "hunter2",
    "x9Qe2kT0vB7mQ2",
    "ghp_",
    "sk-ant-",
    "eyJhbGciOiJIUzI1NiJ9",
    ".",
    "/",
    "-",
    "%3D",
    "%22",
    "&quot;",
    "\\u0022",
    "\\n",
    "\x1b[1m",
    "\u200b",
    "：",
    "ｔｏｋｅｎ",
    "\ud800",
    "é",
    ">-\n  ",
    "is ",
    "export ",
    "curl ",
    "mysql ",
    "-p",
    "id",
    "unzip -P ",
    "7z -p",
    "my ",
    "pin ",
    "PIN=",
    "4711",
    "echo ",
    " | sudo -S",
    "<<< ",
    "-b sid=",
    "net use \\\\h\\s ",
    "0a" * 16,
    "host:5432:db:u:",
    "aB3",
    "=>",
    "==",
    "Digest ",
    "PASSWORD",
    "sha256:",
    "base64,",
    "\r\n",
    "\\",
    'form-data; name="',
    "İ",
    *(fresh("{a40}", seed) for seed in range(4)),
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))
def test_what_was_redacted_once_stays_as_it_is(text: str) -> None:
    shown = redact(text)
    assert redact(shown) == shown


@given(st.text(st.characters()))
def test_any_text_can_be_redacted(text: str) -> None:
    shown = redact(text)
    assert redact(shown) == shown


@given(st.text(string.ascii_lowercase + " /._-:\"'{},\n0123456789", max_size=80))
def test_what_is_not_suspicious_holds_nothing_that_a_closer_look_would_find(text: str) -> None:
    if not suspicious(text):
        assert thoroughly(text) == text


LONG = 200_000
HOSTILE: dict[str, Callable[[], str]] = {
    repr(piece): lambda piece=piece: (piece * (LONG // len(piece) + 1))[:LONG]  # type: ignore[misc]
    for piece in (
        "a",
        ":",
        " ",
        "=",
        '"',
        "'",
        "\\",
        '\\"',
        "-",
        "/",
        "@",
        ".",
        "_",
        "\n",
        " \n",
        "1",
        "password=",
        "password: ",
        "token",
        "token ",
        "key=",
        'key="',
        "key='key=\"",
        '"password":"',
        '\\"token\\":\\"',
        "token%3dabc%26",
        "Authorization: Bearer ",
        "cookie: a=b; ",
        "--password ",
        "mysql -pabc ",
        "-----BEGIN RSA PRIVATE KEY-----",
        "AAAA-----END RSA PRIVATE KEY-----",
        "://",
        "://a:b@",
        "eyJ",
        "ghp_",
        "sk-",
        "AKIA",
        "$2b$",
        "SG." + "a" * 20,
        "123456789:AA",
        "h:5432:d:u:abcdefgh\n",
        "sig",
        "<password>" + "a" * 100,
        '"token" "value',
        'value="x" name="token" ',
        'form-data; name="token"\n',
        "login a password ",
        "echo a | sudo -S ",
        "\x1b[",
        "a\u200b",
        "ｐａｓｓ＝",
        "\ud800",
        "token={",
        'token=["a",',
        "token:\n  token: b\n",
        "Private-Lines: 1",
        "abc8Q~",
        "aB3/",
        "yourkey",
        "&quot;key",
        "unzip -P ",
        "unzip ",
        "7z x -p",
        "openssl -k ",
        "oathtool -a ",
        "net use ",
        "net user a ",
        "echo a |",
        "echo ",
        "my password is: ",
        "password for a ",
        "my my ",
        "pin ",
        "pin 1 ",
        "pin 1-",
        "0a" * 16 + " ",
        "f" * 31 + "0",
        "sqlplus -a ",
        "openssl passwd -a ",
        "curl -b a=",
        "lftp ",
        "<<< a ",
        "wpa_passphrase 'a ",
        "docker login ",
        "mysql '",
        "vault login -a ",
        "--from-literal=a=",
        "sudo -s <",
        "code=",
        "password = ",
        "contraseña es ",
        "ldap" + "a" * 50,
        "htpasswd -bb ",
        "%22",
        "curl -u a:",
        "token is a b c ",
        "-----BEGIN ",
    )
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_text_takes_more_than_linear_time(kind: str) -> None:
    """Anything worse takes minutes here, and the limit of the test run ends it."""
    redact(HOSTILE[kind]())


def test_of_a_very_long_text_the_rest_is_masked_where_anything_is_suspicious() -> None:
    plain = "nothing to see here. " * 50_000
    assert redact(plain) is plain
    shown = redact("password=hunter2hunter2 " + plain + " password=hunter2hunter2")
    assert "hunter2" not in shown and shown.endswith(MASK)
    assert len(shown) <= LONGEST
    assert redact(shown) == shown
