"""What a command line is read as, and what rules say about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.policy.commands import Doubt, Judgement, Redirect, generalise, judge, matches, parse_pattern, read_command
from tests.function_calls import count_function_calls


def judged(text: str, **rules: list[str]) -> str | None:
    return judgement(text, **rules).outcome


def judgement(text: str, **rules: list[str]) -> Judgement:
    listed = [(parse_pattern(p), outcome) for outcome, ps in rules.items() for p in ps]
    return judge(read_command(text), listed)


def argvs(text: str) -> list[list[str]]:
    return [list(segment.argv) for segment in read_command(text).segments]


# --- reading -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n\n", []),
        ("# only a comment", []),
        ("ls", [["ls"]]),
        ("ls -la -- -x", [["ls", "-la", "--", "-x"]]),
        ("ls 'a b' \"c d\" e\\ f ''", [["ls", "a b", "c d", "e f", ""]]),
        ("a'b'\"c\"\\d", [["abcd"]]),
        ('echo "a\\"b\\\\c\\$d\\`e\\n"', [["echo", 'a"b\\c$d`e\\n']]),
        ('grep \'a$\' "b$" c$ "(d$|e)"', [["grep", "a$", "b$", "c$", "(d$|e)"]]),
        ("echo 'a;b' \"c&&d\" e\\|f '>' g#h", [["echo", "a;b", "c&&d", "e|f", ">", "g#h"]]),
        ("git log HEAD~3 stash@{0} -- {}", [["git", "log", "HEAD~3", "stash@{0}", "--", "{}"]]),
        ("a && b || c | d; e\nf", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a&&b||c|d;e", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a |\n\n b &&\n c;", [["a"], ["b"], ["c"]]),
        ("# why\na # because\n\nb", [["a"], ["b"]]),
        ("a 'x\ny'", [["a", "x\ny"]]),
        ("[ -f x ] && a", [["[", "-f", "x", "]"], ["a"]]),
        ("echo if then ! { }", [["echo", "if", "then", "!", "{", "}"]]),
        ("'if' a; \\then b", [["if", "a"], ["then", "b"]]),
        ("echo a=b --c=d", [["echo", "a=b", "--c=d"]]),
        ("echo 日本 é", [["echo", "日本", "é"]]),
    ],
)
def test_plain_commands_are_understood(text: str, expected: list[list[str]]) -> None:
    parsed = read_command(text)
    assert (argvs(text), parsed.doubts) == (expected, ())
    assert all(segment.literal for segment in parsed.segments)


@pytest.mark.spec("T11", "T12")
@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        ("ls $HOME", Doubt.VARIABLE),
        ('ls "$HOME"', Doubt.VARIABLE),
        ("ls ${HOME:-x}", Doubt.VARIABLE),
        ("ls $1", Doubt.VARIABLE),
        ("ls $?", Doubt.VARIABLE),
        ("ls a$%", Doubt.VARIABLE),
        ("ls $(id)", Doubt.SUBSTITUTION),
        ('ls "$(id)"', Doubt.SUBSTITUTION),
        ("ls `id`", Doubt.BACKTICKS),
        ('ls "`id`"', Doubt.BACKTICKS),
        ("ls <(id)", Doubt.PROCESS),
        ("ls >(id)", Doubt.PROCESS),
        ("ls $((1))", Doubt.ARITHMETIC),
        ("ls $[1]", Doubt.ARITHMETIC),
        ("ls ~", Doubt.TILDE),
        ("ls ~bob/x", Doubt.TILDE),
        ("ls a=~/x", Doubt.TILDE),
        ("ls a:~", Doubt.TILDE),
        ("ls *", Doubt.GLOB),
        ("ls a?", Doubt.GLOB),
        ("ls [ab]", Doubt.GLOB),
        ("l[s]", Doubt.GLOB),
        ("ls {a,b}", Doubt.BRACES),
        ("ls {1..3}", Doubt.BRACES),
        ("ls $'a'", Doubt.SPECIAL_QUOTES),
        ('ls $"a"', Doubt.SPECIAL_QUOTES),
        ("ls <<EOF\nx\nEOF", Doubt.HERE_DOCUMENT),
        ("ls <<-EOF\n\tx\n\tEOF", Doubt.HERE_DOCUMENT),
        ("ls <<< x", Doubt.HERE_DOCUMENT),
        ("A=1 ls", Doubt.ASSIGNMENT),
        ("A=1", Doubt.ASSIGNMENT),
        ("A+=1 ls", Doubt.ASSIGNMENT),
        ('"A"=1 ls', Doubt.ASSIGNMENT),
        ("if a; then b; fi", Doubt.COMPOUND),
        ("for x in a; do b; done", Doubt.COMPOUND),
        ("while a; do b; done", Doubt.COMPOUND),
        ("case a in b) c;; esac", Doubt.COMPOUND),
        ("{ a; }", Doubt.COMPOUND),
        ("[[ a == b ]]", Doubt.COMPOUND),
        ("! a", Doubt.COMPOUND),
        ("time a", Doubt.COMPOUND),
        ("coproc a", Doubt.COMPOUND),
        ("select a in b; do c; done", Doubt.COMPOUND),
        ("function f { a; }", Doubt.COMPOUND),
        ("(a)", Doubt.PARENTHESES),
        ("((a))", Doubt.PARENTHESES),
        ("f() { a; }", Doubt.PARENTHESES),
        ("ls @(a|b)", Doubt.PARENTHESES),
        ("ls !(a)", Doubt.PARENTHESES),
        ("ls &", Doubt.BACKGROUND),
        ("ls & a", Doubt.BACKGROUND),
        ("ls |& a", Doubt.DIALECT),
        ("ls &> a", Doubt.DIALECT),
        ("ls &>> a", Doubt.DIALECT),
        ("ls >& a", Doubt.DIALECT),
        ("ls <& a", Doubt.DIALECT),
        ("ls <&12", Doubt.DIALECT),
        ("ls 10> a", Doubt.DIALECT),
        ("ls {x}> a", Doubt.DIALECT),
        ("ls >&1-", Doubt.DIALECT),
        ("ls \\\n-a", Doubt.CONTINUATION),
        ('ls "a\\\nb"', Doubt.CONTINUATION),
        ("ls \\", Doubt.CONTINUATION),
        ("ls 'a", Doubt.UNBALANCED),
        ('ls "a', Doubt.UNBALANCED),
        ("ls `a", Doubt.UNBALANCED),
        ("ls $(a", Doubt.UNBALANCED),
        ("ls ${a", Doubt.UNBALANCED),
        ("ls &&", Doubt.SYNTAX),
        ("&& ls", Doubt.SYNTAX),
        ("; ls", Doubt.SYNTAX),
        ("ls | | a", Doubt.SYNTAX),
        ("ls >", Doubt.SYNTAX),
        ("ls > 2>&1", Doubt.SYNTAX),
        ("ls > # a", Doubt.SYNTAX),
        ("ls ;; a", Doubt.COMPOUND),
        ("ls\r", Doubt.INVISIBLE),
        ("ls\r\na", Doubt.INVISIBLE),
        ("ls\u2028a", Doubt.INVISIBLE),
        ("ls\u0085a", Doubt.INVISIBLE),
        ("ls\u00a0a", Doubt.INVISIBLE),
        ("ls 'a\u200bb'", Doubt.INVISIBLE),
        ("ls '\u202ea'", Doubt.INVISIBLE),
        ("ls '\x1b[2J'", Doubt.INVISIBLE),
        ("ls \x9b", Doubt.INVISIBLE),
        ("ls\0a", Doubt.INVISIBLE),
        ("ls \x7f", Doubt.INVISIBLE),
        ("ls \ud800", Doubt.INVISIBLE),
        ("%1", Doubt.JOB),
        ("-x", Doubt.OPTION),
        ("+x", Doubt.OPTION),
        ("alias ls=rm\nls", Doubt.SHELL_STATE),
        ("export PATH=/tmp; ls", Doubt.SHELL_STATE),
        ("hash -p /tmp/x ls; ls", Doubt.SHELL_STATE),
        ("printf -v PATH /tmp; ls", Doubt.SHELL_STATE),
        ("command export PATH=/tmp; ls", Doubt.SHELL_STATE),
        (". ./x && ls", Doubt.SHELL_STATE),
        ("test -v 'a[$(id)]'", Doubt.ARITHMETIC),
        ("printf -v 'a[`id`]' x", Doubt.ARITHMETIC),
    ],
)
def test_whatever_a_shell_would_replace_or_shells_read_differently_is_doubted(text: str, doubt: Doubt) -> None:
    assert doubt in read_command(text).doubts
    assert judged(text, allow=["*"]) == "ask"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ls > f", Redirect(">", "f", True)),
        ("ls >>f", Redirect(">>", "f", True)),
        ("ls >| f", Redirect(">|", "f", True)),
        ("ls <> f", Redirect("<>", "f", True)),
        ("ls 2> 'a b'", Redirect(">", "a b", True, "2")),
        (">f ls", Redirect(">", "f", True)),
        ("ls > $x", Redirect(">", None, True)),
        ("ls >/dev/null", Redirect(">", "/dev/null", True)),
        ("ls < f", Redirect("<", "f")),
        ("ls 2>&1", Redirect(">&", "1", False, "2")),
        ("ls >& f", Redirect(">&", "f", True)),
        ("ls >&-", Redirect(">&", "-")),
    ],
)
def test_a_redirection_is_not_an_argument(text: str, expected: Redirect) -> None:
    (segment,) = read_command(text).segments
    assert (segment.argv, segment.redirects) == (("ls",), (expected,))


def test_a_number_is_a_descriptor_only_where_the_operator_touches_it() -> None:
    assert [s.argv for s in read_command("echo 2 >f; echo a2>f; echo '2'>f").segments] == [
        ("echo", "2"),
        ("echo", "a2"),
        ("echo", "2"),
    ]


@given(st.text(max_size=60) | st.text("ab \n'\"\\$`;&|<>(){}[]*?~=#-", max_size=60))
def test_no_text_whatever_raises(text: str) -> None:
    parsed = read_command(text)
    rules = [(parse_pattern("rm -rf *"), "deny"), (parse_pattern("a *"), "allow")]
    judged = judge(parsed, rules)
    assert parsed.text == text
    assert judged.sentence.isprintable()
    assert judged.outcome != "allow" or parsed.understood
    generalise(parsed)


# --- judging -------------------------------------------------------------------------

OPERATORS = [";", "&&", "||", "|", "&", "|&", "\n", "\r\n", ";;", "&\n", "\n\n", "; #\n"]
ENCLOSING = [
    "$({})",
    '"$({})"',
    "`{}`",
    '"`{}`"',
    "<({})",
    ">({})",
    "<<X\n{}\nX",
    "<<<'{}'",
    "<<X\n$({})\nX",
    "> {}",
    ">> {}",
    "2> {}",
    "< {}",
    "&> {}",
    "\r{}",
    "\u2028{}",
    "\u0085{}",
    "\\\n;{}",
    "\v{}",
    "\0{}",
    "${{x:-$({})}}",
    "$((`{}`))",
    "$[`{}`]",
    "\n{}",
    "\r\n{}",
    "# \n{}",
    "{{a,b}};{}",
]


@pytest.mark.spec("T11", "T12")
@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("allowed", ["ls", "git status", "echo hello"])
def test_nothing_rides_on_an_allowed_command(allowed: str, operator: str, blank: str) -> None:
    for text in (
        f"{allowed}{blank}{operator}{blank}rm -rf x",
        f"rm -rf x{blank}{operator}{blank}{allowed}",
        f"{allowed}{blank}{operator}{blank}{allowed}{blank}{operator}{blank}rm -rf x",
    ):
        assert judged(text, allow=["ls *", "git status *", "echo *"]) in (None, "ask")


@pytest.mark.spec("T11", "T12")
@pytest.mark.parametrize("enclosing", ENCLOSING)
@pytest.mark.parametrize("allowed", ["ls", "git status", "echo hello"])
def test_nothing_hides_inside_an_allowed_command(allowed: str, enclosing: str) -> None:
    for text in (f"{allowed} " + enclosing.format("rm x"), allowed + enclosing.format("rm x")):
        assert judged(text, allow=["ls *", "git *", "echo *"]) in (None, "ask")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ls", "allow"),
        ("ls -la | grep x && git status", "allow"),
        ("ls 2>&1 >/dev/null", "allow"),
        ("ls </dev/null 2>/dev/null", "allow"),
        ("ls\ngit status", "allow"),
        ("git status -s", None),
        ("make", None),
        ("ls && make", None),
        ("", None),
        ("# nothing", None),
        (">/dev/null", None),
        ("ls > out", "ask"),
        ("ls < in", "ask"),
        ("ls >&-", "ask"),
        ("ls 3>&1 >&3", "ask"),
        ("ls && curl x", "ask"),
        ("make && curl x", "ask"),
        ("ls $HOME", "ask"),
        ("curl x && ls && rm x", "deny"),
        ("rm $HOME", "deny"),
        ("/usr/bin/ls", None),
        ("./ls", None),
        ("sudo ls", None),
        ("env ls", None),
        ("xargs ls", None),
        ("sh -c ls", None),
        ("'ls' \"-la\"", "allow"),
        ("'ls -la'", None),
        ("LS", None),
    ],
)
def test_the_strictest_command_of_a_line_decides(text: str, expected: str | None) -> None:
    rules = {"allow": ["ls *", "git status", "grep *"], "ask": ["curl *"], "deny": ["rm *"]}
    assert judged(text, **rules) == expected


@pytest.mark.spec("T14")
@pytest.mark.parametrize(
    "text",
    [
        "rm -rf x",
        "rm -fr x",
        "rm -r -f x",
        "rm -rvf x",
        "rm x -rf",
        "rm -rf",
        "/bin/rm -rf x",
        "../../bin/rm -rf x",
        "RM -rf x",
        "'r'm -\"rf\" x",
        "\\rm -rf x",
        "r\\\nm -rf x",
        "rm -rf $HOME",
        "rm${IFS}-rf${IFS}x",
        "rm$IFS-rf$IFS/",
        "r$@m -rf x",
        "$NOTHING rm -rf x",
        "$'\\x72m' -rf x",
        "$'\\162\\u006d' -rf x",
        "{rm,-rf,x}",
        "ls; rm -rf x",
        "ls & rm -rf x",
        "ls |& rm -rf x",
        "ls &>f rm -rf x",
        "ls\nrm -rf x",
        "ls $(rm -rf x)",
        'ls "$(rm -rf x)"',
        "ls `rm -rf x`",
        'ls "a `rm -rf x`"',
        "ls `echo \\`rm -rf x\\``",
        "ls $(echo $(echo `rm -rf x`))",
        "ls ${x:-$(rm -rf x)}",
        'ls "${x:-`rm -rf x`}"',
        "ls $((1 + $(rm -rf x)))",
        "ls <(rm -rf x)",
        "(rm -rf x)",
        "((rm -rf x))",
        "{ rm -rf x; }",
        "if a; then rm -rf x; fi",
        "if rm -rf x; then a; fi",
        "while a; do rm -rf x; done",
        "for i in a; do rm -rf x; done",
        "case a in b) rm -rf x;; esac",
        "! rm -rf x",
        "time -p rm -rf x",
        "f() { rm -rf x; }; f",
        "function f { rm -rf x; }; f",
        "coproc rm -rf x",
        "A=1 rm -rf x",
        ">f rm -rf x",
        "cat <<X\n$(rm -rf x)\nX",
        "cat <<X\nX\nrm -rf x",
        "cat <<XY\nX\\\nY\nrm -rf x\nXY",
        "cat <<$'\\x58'\n$\\x58\nrm -rf x\nX",
        "ls $((1 # )); rm -rf x",
        "ls [a # ]; rm -rf x",
        "ls $((1<<2))\nrm -rf x\n2",
        "a[1<<2]=b\nrm -rf x\n2]=b",
        "ls $(cat <<X)\nrm -rf x\nX",
        "bash <<X\nrm -rf x\nX",
        "sudo bash <<'X'\nrm -rf x\nX",
        "sh <<< 'rm -rf x'",
        "sh -c 'rm -rf x'",
        "bash -lc 'ls; rm -rf x'",
        "bash -o pipefail -ec 'rm -rf x' name",
        "/bin/sh -c \"sh -c 'rm -rf x'\"",
        "sh -c 'a=1; rm -rf x'",
        "bash -c -- 'a=1 && rm -rf x'",
        "eval 'a=1; rm -rf x'",
        "ssh host 'a=1; rm -rf x'",
        'sh -c "rm -rf $x"',
        "sudo rm -rf x",
        "sudo -nu bob -- rm -rf x",
        "sudo --user=bob rm -rf x",
        "sudo --user bob rm -rf x",
        "sudo -X value rm -rf x",
        "sudo A=1 rm -rf x",
        "doas rm -rf x",
        "env -i A=1 rm -rf x",
        "env -- A=1 rm -rf x",
        "env -S 'rm -rf x'",
        "env -S'rm -rf x'",
        "xargs -0 -n 1 rm -rf",
        "ls | xargs -I{} rm -rf {}",
        "nice -n 5 rm -rf x",
        "nohup timeout -k 1 10 rm -rf x",
        "timeout --signal KILL 10 rm -rf x",
        "command rm -rf x",
        "exec -a ls rm -rf x",
        "builtin exec rm -rf x",
        "eval rm -rf x",
        "eval 'ls;' 'rm -rf x'",
        "trap 'rm -rf x' EXIT",
        "find . -name a -exec rm -rf {} \\;",
        "find . -execdir ls {} + -ok rm -rf {} +",
        "busybox rm -rf x",
        "su bob -c 'rm -rf x'",
        "ssh -p 22 host rm -rf x",
        "watch -n 1 'rm -rf x'",
        "strace -f -o log rm -rf x",
        "alias l='rm -rf x'",
        "echo rm -rf x | sh",
        "printf 'ls; rm -rf x' | sudo bash -",
        "cat <<X | sh\nrm -rf x\nX",
        "ls $(case a in a) rm -rf x;; esac)",
        "unheard-of | sudo --unheard-of value rm -rf x",
    ],
)
def test_a_denied_command_is_found_wherever_it_stands(text: str) -> None:
    assert judged(text, allow=["*"], deny=["rm -rf *"]) == "deny"


@pytest.mark.parametrize(
    "text",
    [
        "rm x",
        "rm -r x",
        "echo rm -rf x",
        "echo 'rm -rf x'",
        "grep -rf rm x",
        "ls # rm -rf x",
        "git commit -m 'rm -rf x'",
        "cat <<X\nrm -rf x\nX",
        "cat <<'X'\n$(rm -rf x)\nX",
        "xargs grep rm -rf",
        "sudo -u rm -rf x",
        "timeout 5 grep rm -rf",
        "find . -name rm -rf",
        "ls rm",
        "echo rm -rf x | cat",
        "cat <<X | wc\nrm -rf x\nX",
    ],
)
def test_a_text_that_only_mentions_a_denied_command_is_not_denied(text: str) -> None:
    assert judged(text, deny=["rm -rf *"]) in (None, "ask")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git push --force", "deny"),
        ("git push origin main --force", "deny"),
        ("git -C dir push --force", "deny"),
        ("git --no-pager push --force=x", "deny"),
        ("git push", None),
        ("git commit -m push --force", None),
        ("git log push --force", None),
    ],
)
def test_an_option_in_a_denied_pattern_may_stand_anywhere(text: str, expected: str) -> None:
    assert judged(text, deny=["git push --force *"]) == expected


@pytest.mark.spec("T13")
@pytest.mark.parametrize("count", [1, 49, 50, 51, 999, 1000, 1001, 1002, 20_000])
@pytest.mark.parametrize("joiner", ["; ", " && ", " | ", "\n", " $(echo) ; "])
def test_a_denied_command_stays_denied_however_many_stand_before_it(count: int, joiner: str) -> None:
    text = joiner.join(["ls"] * (count - 1) + ["rm x"])
    assert judged(text, allow=["ls *"], deny=["rm *"]) == "deny"
    assert judged("$(" + text + ")", allow=["ls *"], deny=["rm *"]) == "deny"


@pytest.mark.spec("T13")
def test_a_line_that_nobody_can_review_is_denied() -> None:
    for text in (
        "; ".join(["ls"] * 1_001),
        "ls " + "a" * 70_000,
        "ls " + "$(" * 50 + "ls" + ")" * 50,
        "ls " + "${a:-" * 50 + "ls" + "}" * 50,
        "(" * 5_000,
        "sudo " * 1_500 + "ls",
        "eval " * 1_500 + "ls",
        "eval -x " * 1_000 + "ls",
    ):
        found = judgement(text, allow=["*"], ask=["curl *"])
        assert (found.outcome, found.rules, found.doubts[-1:]) == ("deny", (), (Doubt.TOO_LONG,))


@pytest.mark.spec("T13")
def test_a_thousand_allowed_commands_are_allowed_and_one_more_is_not() -> None:
    assert judged("\n".join(["ls"] * 1_000), allow=["ls *"]) == "allow"
    assert judged("\n".join(["ls"] * 1_001), allow=["ls *"]) == "deny"


def test_a_judgement_names_the_rule_for_each_command() -> None:
    found = judgement("ls && sudo rm x; make", allow=["ls *"], deny=["rm *"])
    assert (found.outcome, found.rules) == ("deny", (1,))
    assert [(v.segment.text, v.outcome, v.rule) for v in found.verdicts] == [
        ("ls", "allow", 0),
        ("sudo rm x", "deny", 1),
        ("make", None, None),
    ]


def test_a_denial_counts_whatever_stands_before_it_in_the_list() -> None:
    assert judged("rm x", allow=["rm *"], ask=["rm *"], deny=["rm *"]) == "deny"
    assert judged("sudo rm x", ask=["sudo *"], deny=["rm *"]) == "deny"
    assert judged("rm x", allow=["rm *"], ask=["rm *"]) == "ask"


def test_a_question_that_no_rule_asks_names_no_rule() -> None:
    for text in ("ls $x", "ls > f", "ls & ls"):
        found = judgement(text, allow=["ls *"])
        assert (found.outcome, found.rules) == ("ask", ())


def test_without_rules_nothing_is_decided() -> None:
    assert judged("ls $x") is None


def test_a_rule_with_an_unknown_outcome_is_a_mistake_of_the_program() -> None:
    with pytest.raises(ValueError):
        judge(read_command("ls"), [(parse_pattern("ls"), "maybe")])


# --- patterns ------------------------------------------------------------------------


@pytest.mark.spec("T09", "T24")
@pytest.mark.parametrize(
    ("pattern", "argv", "expected"),
    [
        ("git status", ["git", "status"], True),
        ("git status", ["git", "status", "-s"], False),
        ("git status", ["git"], False),
        ("git log *", ["git", "log"], True),
        ("git log *", ["git", "log", "-p", "--", "x"], True),
        ("git log *", ["git", "-c", "a=b", "log"], False),
        ("git log *", ["git", "logs"], False),
        ("git log*", ["git", "logs"], True),
        ("git * status", ["git", "x", "status"], True),
        ("git * status", ["git", "--exec-path=x", "status"], False),
        ("git checkout feature-*", ["git", "checkout", "feature-1"], True),
        ("git checkout feature-*", ["git", "checkout", "feature-1", "-f"], False),
        ("npm run test:*", ["npm", "run", "test:unit"], True),
        ("cat src/*", ["cat", "src/a/b.py"], True),
        ("cat src/*", ["cat", "src/../../etc/passwd"], False),
        ("cat src/*", ["cat", "src/a..b"], True),
        ("cat ?.py", ["cat", "a.py"], True),
        ("cat ?.py", ["cat", "-.py"], False),
        ("cat [ab].py", ["cat", "a.py"], True),
        ("cat [!ab].py", ["cat", "a.py"], False),
        ("cat [a-c].py", ["cat", "b.py"], True),
        ("cat '*'", ["cat", "*"], True),
        ("cat '*'", ["cat", "x"], False),
        ("cat \\*", ["cat", "x"], False),
        ('cat "a b"', ["cat", "a b"], True),
        ("cat -*", ["cat", "-n"], True),
        ("[ -f * ]", ["[", "-f", "x", "]"], True),
        ("*", ["anything", "-x"], True),
        ("*", [], False),
        ("ls *", ["/bin/ls"], False),
        ("ls *", ["LS"], False),
        ("ls a*b*c", ["ls", "axbxbxc"], True),
        ("ls a*b*c", ["ls", "axcxb"], False),
    ],
)
def test_an_allowing_pattern_covers_words_narrowly(pattern: str, argv: list[str], expected: bool) -> None:
    assert matches(parse_pattern(pattern), tuple(argv)) is expected


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("", None),
        ("  ", None),
        ("ls && rm", 4),
        ("ls; rm", 3),
        ("ls | x", 4),
        ("ls > x", 4),
        ("ls `x`", 4),
        ("ls $(x)", 5),
        ("ls\nrm", 3),
        ("ls 'a", 4),
        ('ls "a', 4),
        ("ls a\\", 5),
        ("ls [a", 4),
        ("ls [z-a]", 4),
        ("A=1 ls", 1),
        ("ls \x1b", 4),
        ("ls\u00a0x", 3),
        ("ls '\u202e'", 5),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused_with_its_place(pattern: str, position: int | None) -> None:
    with pytest.raises(ValueError) as refused:
        parse_pattern(pattern)
    if position is not None:
        assert f"character {position}:" in str(refused.value)


def test_a_pattern_is_shown_as_it_was_written() -> None:
    assert f"{parse_pattern('git  log  *')}" == "git  log  *"


# --- saved rules ---------------------------------------------------------------------


@pytest.mark.spec("T15")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ls -la src", "ls *"),
        ("git status -s", "git status *"),
        ("git log --oneline", "git log --oneline"),
        ("git push", "git push"),
        ("git -C x status", "git -C x status"),
        ("/bin/ls x", "/bin/ls x"),
        ("npm run test", "npm run test"),
        ("echo 'a b'", "echo *"),
        ("python3 -c 'print(1)'", "python3 -c 'print(1)'"),
        ("python3 x.py '*' 'a b'", "python3 x.py '*' 'a b'"),
        ("node -e 1", "node -e 1"),
        ("bash -c 'ls *'", "bash -c 'ls *'"),
        ("sudo ls", "sudo ls"),
        ("env A=1 ls", "env A=1 ls"),
        ("find . -delete", "find . -delete"),
        ("make test", "make test"),
        ("awk '{print}' x", "awk '{print}' x"),
        ("echo 'a' | cat", None),
        ("ls > x", None),
        ("ls $x", None),
        ("A=1 ls", None),
        ("ls *", None),
        ("", None),
        ("bash", None),
        ("bash -s x", None),
        ("python3", None),
        ("python3 -", None),
        ("python3 -i", None),
        ("sudo -n bash", None),
        ("docker exec -i box sh", None),
        ("xargs rm", None),
        ("sudo xargs rm", None),
        ("'' a", None),
    ],
)
def test_a_saved_rule_is_as_narrow_as_what_the_person_saw(text: str, expected: str | None) -> None:
    assert generalise(read_command(text)) == expected


@pytest.mark.spec("T15")
@given(
    st.lists(st.text("ab*?[]'\"\\$`;&|<>(){}~=!# \n\t-/.é", max_size=6), min_size=1, max_size=4).filter(
        lambda words: words[0] not in ("", "ls")
    )
)
def test_a_suggested_pattern_matches_its_own_command_and_no_other(words: list[str]) -> None:
    text = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    parsed = read_command(text)
    suggested = generalise(parsed)
    if parsed.understood:
        assert suggested is not None
        pattern = parse_pattern(suggested)
        assert matches(pattern, tuple(words))
        assert not matches(pattern, (*words, "more"))
        assert not matches(pattern, (words[0] + "x", *words[1:]))


# --- effort --------------------------------------------------------------------------


def steps(action: Callable[[], object]) -> float:
    return count_function_calls(action, repeats=1)


@pytest.mark.parametrize(
    "piece",
    [
        "a ",
        "'a' ",
        '"a$b" ',
        "a;",
        "a\n",
        "$(a) ",
        "`a` ",
        "(a) ",
        "if a; ",
        "{a,b} ",
        "\\\n",
        "${a:-`b`}",
        ">a ",
        "<<a ",
        "<<a\nb\na\n",
        "<<a\n",
        "((1<<2))\n",
        "[",
        "a=[",
        "((",
        "))",
        "#\n",
        "$'a",
        "\"`'",
        "sudo -x a;",
        "eval a;",
        "sh -c 'a;b';",
        "echo a|sh|",
        "sh <<a|",
        "case a) ",
    ],
)
def test_twice_the_text_takes_twice_the_steps(piece: str) -> None:
    rules = [(parse_pattern("rm -rf *"), "deny"), (parse_pattern("a*b*c *"), "ask")]

    def effort(count: int) -> int:
        text = piece * count
        return steps(lambda: judge(read_command(text), rules))

    assert effort(400) <= 2.3 * effort(200) + 200


def test_a_wildcard_takes_no_longer_than_the_word() -> None:
    pattern = parse_pattern("ls " + "a*" * 20 + "b")
    assert matches(pattern, ("ls", "a" * 60_000)) is False
