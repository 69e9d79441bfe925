"""Patterns that an "always" answer offers: what each covers, and what it must not cover."""

from __future__ import annotations

import pytest

from callgate.policy.commands import judge, parse_pattern, proposals, read_command

EXACT = "exactly these words"

WIDER: list[tuple[str, str, list[str], list[str]]] = [
    # command, pattern, covered, not covered
    ("git commit -m 'Fix it'", "git commit -m ?*", ["git commit -m x", "git commit -m 'a; rm -rf /'"],
     ["git commit -m x --no-verify", "git commit -m x -F /etc/passwd", "git commit", "git commit -m -F",
      "git commit -am x", "git -c core.editor=x commit -m x", "git commit -m x && rm y", "git commit -m x > y",
      "git commit -m $(id)", "git commit -m $X", "git commit -m x y", "GIT_DIR=x git commit -m x"]),
    ("git commit -am x", "git commit -am ?*", ["git commit -am 'other'"], ["git commit -m x", "git commit -am x --amend"]),
    ("git commit -q -m x", "git commit -q -m ?*", ["git commit -q -m y"], ["git commit -m x -q"]),
    ("git commit --message=x", "git commit --message=*", ["git commit --message=y"], ["git commit --file=x"]),
    ("git commit -a -s -m x", "git commit -a -s -m ?*", ["git commit -a -s -m y"], ["git commit -a -m y"]),
    ("git add a.py", "git add [!/@+:]*", ["git add b.py", "git add src/x"],
     ["git add -f b.py", "git add ../b", "git add /b", "git add a b", "git add :/", "git add ':(top)x'", "git add --pathspec-from-file=x"]),
    ("git add src/a.py", "git add src/*", ["git add src/b/c.py"], ["git add b.py", "git add src/../x", "git add srcs/x"]),
    ("git add src/a.py b.py", "git add src/* [!/@+:]*", ["git add src/x y"], ["git add y src/x", "git add src/x"]),
    ("git add .", "git add [!/@+:]*", ["git add src"], ["git add ..", "git add -i"]),
    ("git stash push -m x", "git stash push -m ?*", ["git stash push -m y"], ["git stash pop", "git stash drop"]),
    ("git switch main", "git switch [!/@+:]*", ["git switch other"], ["git switch -f main", "git switch --discard-changes x"]),
    ("git switch -c new", "git switch -c [!/@+:]*", ["git switch -c x"], ["git switch -C x"]),
    ("git diff HEAD", "git diff [!/@+:]*", ["git diff main"],
     ["git diff --ext-diff", "git diff --output=x", "git diff a b", "git diff /etc/passwd", "git diff --no-index"]),
    ("git diff --stat main", "git diff --stat [!/@+:]*", ["git diff --stat x"], ["git diff --stat --output=x"]),
    ("git log --oneline main", "git log --oneline [!/@+:]*", ["git log --oneline x"], ["git log --oneline --output=x"]),
    ("git show HEAD", "git show [!/@+:]*", ["git show abc123"], ["git show --textconv", "git show --ext-diff HEAD"]),
    ("git blame src/a.py", "git blame src/*", ["git blame src/b"], ["git blame --contents x src/b"]),
    ("pytest tests/a.py", "pytest tests/*", ["pytest tests/b/c.py::test_x"],
     ["pytest", "pytest -p evil tests/a.py", "pytest tests/a.py -p evil", "pytest tests/../x.py", "pytest /tmp/x.py",
      "pytest tests/a.py tests/b.py", "pytest @args", "pytest other/a.py", "python -m pytest tests/a.py"]),
    ("pytest a.py", "pytest [!/@+:]*", ["pytest b.py"], ["pytest @b", "pytest -c evil.ini", "pytest /b", "pytest --rootdir=/"]),
    ("pytest -q tests/a.py", "pytest -q tests/*", ["pytest -q tests/b"], ["pytest -q -o x=y tests/b"]),
    ("pytest tests/a.py -x", "pytest tests/* -x", ["pytest tests/b -x"], ["pytest tests/b --pdb"]),
    ("pytest -k name tests/a", "pytest -k name tests/*", ["pytest -k name tests/b"], ["pytest -k other tests/b"]),
    ("go test ./...", "go test ./*", ["go test ./pkg/x"], ["go test -exec ./x ./...", "go test -toolexec=x ./...", "go test ../x"]),
    ("go test -v ./pkg", "go test -v ./*", ["go test -v ./x"], ["go test -v -o x ./pkg"]),
    ("go vet ./...", "go vet ./*", ["go vet ./x"], ["go vet -vettool=./x ./..."]),
    ("go build ./cmd", "go build ./*", ["go build ./x"], ["go build -o /x ./cmd", "go build -toolexec x ./cmd"]),
    ("cargo test name", "cargo test [!/@+:]*", ["cargo test other"],
     ["cargo test --config x", "cargo test x --manifest-path=y", "cargo run x", "cargo +x test y"]),
    ("ruff check src", "ruff check [!/@+:]*", ["ruff check tests"], ["ruff check --config x src", "ruff check /"]),
    ("ruff check --fix src/a", "ruff check --fix src/*", ["ruff check --fix src/b"], ["ruff check --unsafe-fixes src/b"]),
    ("ruff format src/a", "ruff format src/*", ["ruff format src/b"], ["ruff format --config=x src/b"]),
    ("black src", "black [!/@+:]*", ["black x"], ["black --config x y", "black -c code"]),
    ("isort src", "isort [!/@+:]*", ["isort x"], ["isort --settings-path=x y"]),
    ("mypy src", "mypy [!/@+:]*", ["mypy x"], ["mypy @x", "mypy --config-file=x y", "mypy --python-executable=x y", "mypy -c x"]),
    ("flake8 src/a", "flake8 src/*", ["flake8 src/b"], ["flake8 --config=x src/b"]),
    ("gofmt -w a/x.go", "gofmt -w a/*", ["gofmt -w a/y.go"], ["gofmt -cpuprofile=x a/y"]),
    ("rustfmt a.rs", "rustfmt [!/@+:]*", ["rustfmt b.rs"], ["rustfmt +/evil/toolchain", "rustfmt @x"]),
    ("rustfmt src/a.rs", "rustfmt src/*", ["rustfmt src/b.rs"], ["rustfmt --config-path x src/b.rs"]),
    ("prettier --write src/a", "prettier --write src/*", ["prettier --write src/b"], ["prettier --plugin=./x --write src/b"]),
    ("eslint src/a.js", "eslint src/*", ["eslint src/b.js"], ["eslint --rulesdir x src/b", "eslint -c x src/b", "eslint -o x src/b"]),
    ("mkdir -p a/b", "mkdir -p a/*", ["mkdir -p a/c/d"], ["mkdir -p /x", "mkdir -p a/../x", "mkdir -m 777 a/x"]),
    ("touch a/x", "touch a/*", ["touch a/y"], ["touch -r /x a/y", "touch a/x a/y"]),
    ("ls -la", "ls *", ["ls", "ls -R src"], ["ls; rm x", "ls > x", "ls $(id)", "./ls"]),
    ("cat a", "cat *", ["cat b c"], ["cat a | sh", "cat a > b", "cat <(id)"]),
    ("grep -n x a", "grep *", ["grep -r y ."], ["grep x a && rm a", "egrep x a"]),
    ("git status", "git status *", ["git status -s"], ["git -c x=y status", "git stash", "git status; id"]),
    ("wc -l a", "wc *", ["wc b"], ["wc a | sh"]),
]  # fmt: skip

ONLY_EXACT = r"""
npm test
npm run build
npm run test -- --watch
npm install
npx jest
yarn test
pnpm test
make
make test
make -j4 test
make -f x test
make CC=gcc all
cargo build
cargo run
go run ./cmd
go generate ./...
python script.py
python3 -m pytest tests/a
python3 -m http.server
node app.js
deno run a.ts
perl a.pl
ruby a.rb
bash build.sh
sh -c 'echo x'
./build.sh
env FOO=1 make
sudo make install
timeout 5 pytest tests/a
nice make
find . -name x
find . -delete
find . -exec rm x +
ssh host ls
docker run x
docker ps
kubectl get pods
git push
git push --force
git pull
git fetch origin
git clone url
git checkout main
git checkout -- a
git reset --hard
git clean -fd
git rebase main
git merge x
git config user.name x
git commit --amend
git commit --amend -m x
git commit --no-verify -m x
git commit -F msg
git commit -m x a.py
git commit
git log --output=x main
git diff --ext-diff main
git -C sub commit -m x
git -c a=b commit -m x
git add -f x
git add -p
git add /etc/x
git add ../x
pytest
pytest -q
pytest -p evil tests/a
pytest --pdb tests/a
pytest -c x.ini tests/a
pytest @args
mypy @args
eslint -c x src
prettier --plugin=x src/a
curl https://example.com
wget x
rm -rf build
mv a b
cp a b
chmod +x a
tar xf a
sed -i s/a/b/ x
awk '{print}' x
tee x
touch /etc/x
touch ../x
mkdir
ruff check --config x src
""".strip().splitlines()

NOTHING = [
    "ls; rm x", "git add x && git commit -m y", "cat a | sh", "git commit -m $(id)", "git commit -m x > y",
    "FOO=1 git add x", "xargs rm", "echo x | xargs rm", "bash", "python", "python -", "node --test", "sh -s", "ls *", "cat ~/x",
    "(ls)", "if true; then ls; fi", "git commit -m 'x", "",
]  # fmt: skip


def outcome(pattern: str, command: str) -> str | None:
    return judge(read_command(command), [(parse_pattern(pattern), "allow")]).outcome


def test_the_table_has_more_than_eighty_commands() -> None:
    assert len(WIDER) + len(ONLY_EXACT) + len(NOTHING) > 80


@pytest.mark.parametrize(("command", "pattern", "covered", "uncovered"), WIDER, ids=lambda each: str(each)[:40])
def test_a_wider_pattern_covers_what_it_says_and_no_more(
    command: str, pattern: str, covered: list[str], uncovered: list[str]
) -> None:
    exact, wider = proposals(read_command(command))
    assert (exact.covers, wider.pattern) == (EXACT, pattern)
    assert "<" in wider.covers
    for each in (command, *covered):
        assert outcome(pattern, each) == "allow", each
    for each in uncovered:
        assert outcome(pattern, each) != "allow", each
        assert outcome(exact.pattern, each) != "allow", each


@pytest.mark.parametrize("command", ONLY_EXACT)
def test_everything_else_has_exactly_its_words(command: str) -> None:
    offered = proposals(read_command(command))
    assert [each.covers for each in offered] == [EXACT]
    assert outcome(offered[0].pattern, command) == "allow"
    for more in (f"{command} x", f"{command} --force", f"{command}; id", f"{command} > x"):
        assert outcome(offered[0].pattern, more) != "allow"


@pytest.mark.parametrize("command", NOTHING)
def test_a_line_that_no_pattern_says_has_no_proposal(command: str) -> None:
    assert proposals(read_command(command)) == ()


def test_a_command_with_the_network_has_exactly_its_words() -> None:
    offered = proposals(read_command("git commit -m x"), network=True)
    assert [each.covers for each in offered] == [EXACT]


def test_what_it_covers_is_said_in_words() -> None:
    covers = [each.covers for each in proposals(read_command("pytest -q tests/a.py"))]
    assert covers == [EXACT, "pytest -q <one path in tests/>"]
    covers = [each.covers for each in proposals(read_command("git commit -m 'a b'"))]
    assert covers == [EXACT, "git commit -m <one text>"]
