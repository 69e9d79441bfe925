"""Which command lines count as reading, and what the policy makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.calls import CallerKind
from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode
from callgate.policy.commands import parse_pattern
from callgate.policy.decide import decide
from callgate.policy.decisions import Question
from callgate.policy.read_commands import Reads, reads_only
from callgate.policy.read_programs import GIT, PROGRAMS
from callgate.policy.rules import BUILT_IN, Origin, Outcome, Policy, PolicyMode, Rule, Setting

READING = r"""
ls
ls -la src tests
cat README.md
cat a.txt b.txt | head -20
head -n 50 src/main.py
tail -20 log.txt
tail -n +5 x
grep -rn "def main" src
grep -rn '/api/v1' src
grep -c foo a.txt
rg -n pattern src
rg --files -g '*.py'
wc -l src/main.py
git status
git status --short --branch
git status -uno
git log --oneline -10
git log -p -2 -- src/main.py
git log --since=yesterday --author=me
git log --pretty=format:%h
git diff
git diff --stat HEAD~1
git diff --cached
git diff main..feature
git diff -M90% HEAD
git show HEAD:README.md
git branch
git branch -a
git branch --contains HEAD
git branch --merged
git branch --show-current
git tag
git tag -l 'v*'
git remote -v
git stash list
git blame -L 1,10 src/main.py
git grep -n foo
git rev-parse --show-toplevel
git rev-parse --abbrev-ref HEAD
git ls-files -m -o --exclude-standard
git -C sub status
git --no-pager log -3
git --version
find . -name '*.py'
find src -type f -maxdepth 2 -not -path './x/*'
find . \( -name a -o -name b \) -print
sort a.txt | uniq -c | sort -rn | head
sort -k2 -t, a.csv
cut -d: -f1 a
sed -n '10,20p' src/main.py
awk '{print $1}' a.txt
awk -F: '{print $1, $3}' a.txt
jq .name package.json
jq -r '.scripts | keys[]' package.json
diff -u a b
file a
stat a
du -sh .
df -h
tree -L 2
pwd
echo hello
cd src && ls
cd src && grep -n x main.py | head
python3 --version
node -v
which python
command -v git
test -f x && cat x
[ -d src ] && ls src
ls 2>/dev/null
ls; pwd
ls || true
date +%Y
md5sum a
xxd a
""".strip().splitlines()

NOT_READING = r"""
rm x
ls *
ls $HOME
cat ~/.ssh/id_rsa
ls > out
ls >> out
cat < in
cat <<< x
FOO=1 ls
GIT_EXTERNAL_DIFF=./x git diff
LESSOPEN=./x ls
ls `id`
ls $(id)
ls <(id)
ls &
ls && rm x
ls | sh
ls; ./x
find . -exec rm {} +
find . -execdir rm {} +
find . -ok rm {} ;
find . -delete
find . -fprint x
find . -fprintf x %p
find . -fls x
find -L .
find . -follow
find . -files0-from x
sort -o x a
sort --output=x a
sort --outpu=x a
sort --compress-program=./x a
sort -T . a
sort --files0-from=x
uniq a b
git -c core.pager=x log
git -ccore.pager=x log
git -p log
git --paginate log
git --exec-path=. status
git --git-dir=x status
git --work-tree=x status
git --config-env=core.pager=X log
git -C a -C b status
git st
git log --output=x
git log --outp=x
git diff --output x
git diff --ext-diff
git diff -Ox
git diff --no-index a b
git grep -O vi foo
git grep -Ovi foo
git grep --open-files-in-pager=x foo
git grep --no-index foo /etc
git branch new
git branch -d x
git branch -v new
git branch -m a b
git branch --edit-description
git tag v1
git tag -d v1
git tag -v v1
git remote add a b
git remote show origin
git remote update
git stash
git stash pop
git config -l
git config --get x
git log --show-signature
git log --pretty=format:%G?
git log --format=%GG
git log --encoding --output=x
git log --skip --output=x
git show --textconv
git cat-file --textconv HEAD:a
git cat-file --filters HEAD:a
git archive HEAD
git bundle create x HEAD
git format-patch -1
git difftool
git reflog expire
git reflog delete x
git notes add
git worktree add x
git submodule status
git fetch
git ls-remote
git checkout x
git help log
rg --pre ./x foo
rg --pre-glob x foo
rg --hostname-bin ./x foo
rg -z foo
rg -L foo
rg -f /etc/passwd x
rg --ignore-file x foo
grep -f x y
grep -R foo .
grep --file=x y
tree -o x
tree -R
tree -l
tree --fromfile x
xxd -r a b
xxd -revert a
xxd a b
sed -i s/a/b/ x
sed -n -i 1p x
sed -n 'w x' a
sed -n '1e id' a
sed -n -f x a
sed '1,5p' a
sed -n 's/a/b/w x' a
sed -n 's/a/id/ep' a
awk 'BEGIN{system("id")}' a
awk '{print > "x"}' a
awk '{print | "sh"}' a
awk '{getline < "/etc/passwd"}' a
awk -f x a
awk -i inplace '{print}' a
tail -f x
tail -F x
tail --follow x
less x
more x
man ls
env
printenv
xargs ls
tee x
tar tf x
tar cf x .
zcat x
jq env
jq -n '$ENV'
jq -f x y
jq -L . .
jq 'import "a" as a; .' y
jq --slurpfile a /etc/passwd . y
cd src
cd x; ls
cd - && ls
cd x && ls; pwd
cd x && cd y && ls
date -s x
date 01010101
date -f x
hostname evil
hostname -F x
diff -l a b
diff -r a b
diff --to-file=x a
sh -c ls
bash -c 'ls'
./ls
/bin/ls
bin/ls
sudo ls
nice ls
timeout 5 ls
time ls
! ls
fd -x rm
fd -X rm
fd -l
curl x
pytest --version
python3 -c pass
python3 --version x.py
node -v x.js
file -C -m x
file -f x
file -z x
du --files0-from=x
wc --files0-from=x
md5sum -c x
command ls
command -p ls
command cat -v /etc/passwd
command sh -V evil.sh
command -- ls -v
printf '12345%n' PATH; ls
printf 'a%-3ln' PATH
tree -Pl x .
tree -aPo x out
tree -Llo 2 out
xxd -ps /etc/passwd
xxd -as 1
jq '"a" | modulemeta' x
git -C -P log
test -f x -o -f y
printf -v x y
split a
yes
dd if=a
nl --unknown a
cat --help-me a
unknown
""".strip().splitlines()


@pytest.mark.parametrize("line", READING)
def test_a_line_of_listed_programs_and_options_reads(line: str) -> None:
    assert reads_only(line) is not None


@pytest.mark.parametrize("line", NOT_READING)
def test_every_other_line_does_not_count_as_reading(line: str) -> None:
    assert reads_only(line) is None


@pytest.mark.parametrize("joint", [";", "&&", "||", "|", "\n"])
def test_one_command_that_may_write_spoils_the_line(joint: str) -> None:
    assert reads_only(f"ls {joint} cat a") is not None
    assert reads_only(f"ls {joint} touch a") is None
    assert reads_only(f"touch a {joint} ls") is None


def test_the_words_that_may_be_paths_are_named() -> None:
    line = "cd src && cat a ../b | grep -n /pattern c && diff d e && git -C f show HEAD:g"
    assert reads_only(line) == Reads(
        paths=("a", "../b", "c", "d", "e", "f", "f/HEAD:g"),
        files=frozenset({"d", "e"}),
        directory="src",
        repositories=frozenset({"f"}),
    )


@pytest.mark.parametrize("command", [*PROGRAMS, *(f"git {name}" for name in GIT)])
def test_the_value_of_an_option_is_followed_as_a_path_unless_it_is_a_text(command: str) -> None:
    """A program that takes no value there, or an optional one, would open it."""
    reader = GIT[command[4:]] if command.startswith("git ") else PROGRAMS[command]
    needed = f"-{min(reader.needs)}" if reader.needs else ""
    script = {"": "", "sed": "1p", "awk": "'{print $1}'"}.get(reader.script, ".")
    options = [f"-{each}" for each in reader.values] + [f"--{each}" for each in reader.long_values]
    for option in options:
        reads = reads_only(f"{command} {needed} {option} /etc/x {script}")
        assert reads is not None, option
        assert ("/etc/x" in reads.paths) is (option.lstrip("-") not in reader.texts), option


@pytest.mark.parametrize(
    ("line", "directory"),
    [
        ("git log", ""), ("git -C a log", "a"), ("git -P -C a log -C", "a"), ("git --no-pager log -C", ""),
        ("git -C a --no-pager log", "a"),
    ],
)  # fmt: skip
def test_the_directory_in_which_git_looks_for_its_repository_is_named(line: str, directory: str) -> None:
    reads = reads_only(line)
    assert reads is not None
    assert reads.repositories == {directory}


def test_a_long_line_needs_approval() -> None:
    assert reads_only("ls " + "a" * 4_000) is None
    assert reads_only("; ".join(["ls"] * 21)) is None


# --- the decision -----------------------------------------------------------------------------

SET = Origin("settings.toml", 3)
ALLOW = Policy(read_commands=Setting(PolicyMode.AUTO, SET))
ASK = Policy(read_commands=Setting(PolicyMode.PROMPT, SET))


def asked(*, mode: Mode = Mode.ASK, reading: bool = True, **more: Any) -> Question:
    return Question(
        tool="shell",
        effect=SideEffects.EXECUTE,
        mode=mode,
        arguments={"command": "git status"},
        reading=reading,
        read_only_sandbox=reading,
        contained=reading,
        **more,
    )


def test_the_setting_allows_a_command_that_only_reads_and_is_named() -> None:
    decision = decide(asked(), ALLOW)
    assert (decision.outcome, decision.reason, decision.origin) == (Outcome.ALLOW, "read_commands", SET)
    assert decision.policy_reason == "read_commands (settings.toml:3)"
    assert decide(asked(reading=False), ALLOW).outcome is Outcome.ASK


def test_mode_ask_asks_without_the_setting() -> None:
    assert decide(asked(), Policy()).reason == "class_default"
    assert decide(asked(), ASK).outcome is Outcome.ASK


def test_mode_guarded_includes_it_unless_the_settings_say_ask() -> None:
    decision = decide(asked(mode=Mode.GUARDED), Policy())
    assert (decision.outcome, decision.reason, decision.origin) == (Outcome.ALLOW, "read_commands", BUILT_IN)
    assert decide(asked(mode=Mode.GUARDED), ASK).reason == "mode_guarded"


@pytest.mark.parametrize(
    "policy",
    [
        {"rules": (Rule(decision=Outcome.ASK, command=parse_pattern("git status")),)},
        {"rules": (Rule(decision=Outcome.ASK, tool="shell"),)},
        {"rules": (Rule(decision=Outcome.ASK, tool="read_file"),)},
        {"per_tool": {"shell": Setting(PolicyMode.PROMPT)}},
        {"per_tool": {"read_file": Setting(PolicyMode.PROMPT)}},
        {"default": {SideEffects.READ: Setting(PolicyMode.PROMPT)}},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", [Mode.ASK, Mode.GUARDED])
def test_a_question_that_somebody_wrote_down_is_asked(policy: dict[str, Any], mode: Mode) -> None:
    decision = decide(asked(mode=mode), Policy(read_commands=ALLOW.read_commands, **policy))
    assert decision.reason != "read_commands"
    if mode is Mode.ASK:
        assert decision.outcome is Outcome.ASK


@pytest.mark.parametrize(
    "policy",
    [
        {"rules": (Rule(decision=Outcome.DENY, command=parse_pattern("git *")),)},
        {"default": {SideEffects.EXECUTE: Setting(PolicyMode.DENY)}},
        {"per_tool": {"shell": Setting(PolicyMode.DENY)}},
    ],
    ids=str,
)
def test_a_deny_is_final(policy: dict[str, Any]) -> None:
    decision = decide(asked(), Policy(read_commands=ALLOW.read_commands, **policy))
    assert decision.outcome is Outcome.DENY


def test_a_workspace_may_switch_it_off() -> None:
    assert decide(asked(), ALLOW, ASK).outcome is Outcome.ASK
    assert decide(asked(), Policy(), ALLOW).outcome is Outcome.ASK


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.READ, Mode.WRITE])
def test_other_modes_decide_as_before(mode: Mode) -> None:
    for caller in CallerKind:
        question = asked(mode=mode, caller=caller)
        assert decide(question, ALLOW) == decide(question, Policy())
