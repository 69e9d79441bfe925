"""The Node client against a real instance, and its own tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs

PACKAGE = Path(__file__).parents[3] / "packages" / "client-node"
LONGEST = 160
"""Lines of the whole client: it stays something that is read in one sitting."""
WIDEST = 100

pytestmark = needs("node")

SLEEP = {"command": "echo begun; sleep 600"}


class Served:
    def __init__(self, base: Path, *options: str, label: str = "one") -> None:
        self.home, self.ws = base / "h", base / label
        self.ws.mkdir(exist_ok=True)
        (self.ws / "a.txt").write_text("hell\u00f6 \u2028\n")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "callgate", "serve", "--label", label, *options],
            cwd=self.ws,
            env=self.environment(),
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"callgate: listening on ")

    def environment(self) -> dict[str, str]:
        return {**os.environ, "CALLGATE_HOME": str(self.home)}

    def node(self, script: str, **given: Any) -> Any:
        """What a script prints with `show(value)`, run in the workspace."""
        given_it = f"const given = {json.dumps(given)};"
        ended = subprocess.run(
            ["node", "--input-type=module", "-e", _BEFORE + given_it + script],
            cwd=self.ws,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        shown = [json.loads(line) for line in ended.stdout.split("\n")[:-1]]
        return shown[0] if len(shown) == 1 else shown

    def leave(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


_BEFORE = f"""
import {{ connect }} from {json.dumps((PACKAGE / "callgate.mjs").as_uri())};
const show = (value) => console.log(JSON.stringify(value));
"""


@pytest.fixture
def base() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="cg"))  # a short path: sockets have no long ones
    yield made
    shutil.rmtree(made)


@pytest.fixture
def served(base: Path) -> Iterator[Served]:
    served = Served(base)
    yield served
    served.leave()


@pytest.fixture
def second(base: Path, served: Served) -> Iterator[Served]:
    """Started after the other, in the same home."""
    second = Served(base, "--socket", str(base / "s" / "2.sock"), label="two")
    yield second
    second.leave()


@pytest.fixture
def elsewhere(base: Path) -> Iterator[Served]:
    """The only instance, not at the usual place."""
    served = Served(base, "--socket", str(base / "s" / "other.sock"))
    yield served
    served.leave()


@pytest.fixture
def working(base: Path) -> Iterator[Served]:
    served = Served(base, "--mode", "write")
    yield served
    served.leave()


def test_the_clients_own_tests_pass() -> None:
    files = sorted(map(str, (PACKAGE / "test").glob("*.test.mjs")))
    ended = subprocess.run(
        ["node", "--test", *files],
        capture_output=True,
        text=True,
        timeout=110,
        env={name: value for name, value in os.environ.items() if name != "NODE_TEST_CONTEXT"},
    )
    assert ended.returncode == 0, ended.stdout
    assert len(files) == 3


def test_the_client_is_one_short_file_that_needs_no_other_package() -> None:
    scripts = [path for path in PACKAGE.rglob("*.*js") if path.parent.name != "test"]
    assert scripts == [PACKAGE / "callgate.mjs"]
    lines = scripts[0].read_text().split("\n")
    assert len(lines) - 1 <= LONGEST
    assert [line for line in lines if len(line) > WIDEST] == []
    about = json.loads((PACKAGE / "package.json").read_text())
    assert not {"dependencies", "devDependencies", "peerDependencies"} & set(about)


@pytest.mark.spec("S0-17")
def test_a_call_gives_its_result_and_a_failure_is_one(served: Served) -> None:
    text, unknown, invalid, refused = served.node("""
        const gate = await connect();
        show((await gate.call("read_file", {path: "a.txt"})).content);
        show((await gate.call("no_such_tool")).error.code);
        show((await gate.call("read_file", {path: 7}, {timeoutMs: 1000})).error.code);
        show((await gate.call("write_file", {path: "b.txt", content: "x"})).error.details.reason);
        gate.close();
    """)
    assert text == "hell\u00f6 \u2028\n"
    assert (unknown, invalid, refused) == ("UNKNOWN_TOOL", "VALIDATION_ERROR", "no_confirmer")
    assert not (served.ws / "b.txt").exists()


def test_what_an_instance_refuses_to_read_is_a_result_as_well(served: Served) -> None:
    codes = served.node("""
        const gate = await connect();
        const results = [
          await gate.call("read_file", null), await gate.call("x".repeat(200)),
          await gate.call("read_file", {}, {timeoutMs: 0.5}), await gate.call("read_file", {path: "a.txt"}),
        ];
        show(results.map((result) => result.error?.code ?? null));
        gate.close();
    """)
    assert codes == ["PROTOCOL_ERROR"] * 3 + [None]


@pytest.mark.parametrize("unreadable", [{"path": "\ud800"}, json.loads('{"a":' * 70 + "1" + "}" * 70)])
def test_what_an_instance_cannot_read_leaves_no_call_waiting(working: Served, unreadable: dict[str, Any]) -> None:
    ends = working.node(
        """
        const gate = await connect();
        const reason = ({code, reason, mayHaveRun}) => [code, reason, mayHaveRun];
        const other = gate.call("shell", given.sleep).catch(reason);
        show([await gate.call("read_file", given.unreadable).catch(reason), await other]);
    """,
        unreadable=unreadable,
        sleep=SLEEP,
    )
    assert ends == [["INSTANCE_GONE", "unreadable", True]] * 2


def test_tools_are_those_of_the_directory(served: Served) -> None:
    here, elsewhere, own = served.node("""
        for (const cwd of [".", "/", null]) {
          const gate = await connect({cwd});
          show((await gate.tools()).map((tool) => tool.name));
          gate.close();
        }
    """)
    assert "read_file" in here
    assert (elsewhere, own) == ([], here)


@pytest.mark.spec("S0-17", "S0-49")
def test_a_call_is_heard_while_it_runs_and_ends_when_it_is_aborted(working: Served) -> None:
    events, code, after = working.node(
        """
        const gate = await connect();
        const stop = new AbortController();
        const events = [];
        const onEvent = (event) => { events.push(event); stop.abort(); };
        const result = await gate.call("shell", given.sleep, {signal: stop.signal, onEvent});
        show(events); show(result.error.code);
        show((await gate.call("read_file", {path: "a.txt"})).ok);
        gate.close();
    """,
        sleep=SLEEP,
    )
    assert events == [{"kind": "partial_text", "text": "begun\n", "stream": "stdout"}]
    assert (code, after) == ("CANCELLED", True)


def test_a_question_is_seen_and_taken_back_and_never_allowed(served: Served) -> None:
    tool, refusal, receipt, ok, left = served.node("""
        const gate = await connect();
        const events = gate.subscribe({types: ["tool.confirmation_requested"], confirmer: true});
        const called = gate.call("write_file", {path: "b.txt", content: "x"});
        for await (const event of events) {
          const [question] = await gate.confirmations();
          show(question.tool);
          show(await gate.answer(question, {decision: "allow"}).catch(({code}) => code));
          show(await gate.answer(question, {decision: "deny"}));
          show((await called).ok);
          break;
        }
        show(await gate.confirmations());
        gate.close();
    """)
    assert (tool, refusal, ok, left) == ("write_file", "REQUEST_REFUSED", False, [])
    assert (receipt["applied"], receipt["decision"]) == (True, "deny")
    assert not (served.ws / "b.txt").exists()


def test_events_are_those_of_the_own_calls(served: Served) -> None:
    types = served.node("""
        const [gate, other] = [await connect(), await connect()];
        const events = gate.subscribe({types: ["tool.called", "tool.completed"]});
        await other.call("read_file", {path: "a.txt"});
        await gate.call("read_file", {path: "a.txt"});
        await gate.call("read_file", {path: "a.txt"});
        const seen = [];
        for await (const event of events) if (seen.push(event.type) === 4) break;
        show(seen);
        gate.close(); other.close();
    """)
    assert types == ["tool.called", "tool.completed"] * 2


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_an_instance_that_goes_away_within_a_call_ends_it(working: Served, how: str) -> None:
    code, error = working.node(
        """
        const gate = await connect();
        const events = gate.subscribe({types: ["nothing"]}).next().catch((error) => error.code);
        const onEvent = () => process.kill(given.pid, given.how);
        const outcome = await gate.call("shell", given.sleep, {onEvent}).catch((error) => error);
        show(outcome.code ?? outcome.error.code);
        show(await events);
    """,
        pid=working.process.pid,
        how=how,
        sleep=SLEEP,
    )
    ends = {"SIGKILL": {"INSTANCE_GONE"}, "SIGINT": {"RUNTIME_SHUTTING_DOWN", "CANCELLED"}}
    assert code in ends[how]
    assert error == "INSTANCE_GONE"
    working.process.wait(60)
    missing = working.node("await connect().catch((error) => show(error.code))")
    assert missing == "NO_INSTANCE"


@pytest.mark.spec("S0-13", "S0-14")
def test_the_instance_is_the_one_named_else_the_newest_that_lives(base: Path, served: Served, second: Served) -> None:
    socket = str(served.home / "run" / "callgate.sock")  # where the older one listens
    records = {
        second.process.pid + 4_000_000: socket,  # of a process that is dead
        os.getpid(): str(base / "nobody.sock"),  # its number is another's by now
    }
    for pid, path in records.items():
        said = json.dumps({"pid": pid, "label": "stale", "socketPath": path, "startedAt": 9e15})
        (served.home / "instances" / f"{pid}.json").write_text(said)
    for name, text in {"1.json": "nonsense", "x.json": "{}", "-1.json": "7"}.items():
        (served.home / "instances" / name).write_text(text)
    script = """
        for (const options of given.wanted) {
          try {
            const gate = await connect({...options, cwd: null});
            show((await gate.call("list_dir", {path: "."})).content);
            gate.close();
          } catch (error) {
            show(error.code);
          }
        }
    """
    for label in ("one", "two"):
        (base / label / f"{label}.txt").touch()
    wanted = [
        {},
        {"instance": "one"},
        {"instance": second.process.pid},
        {"instance": "stale"},
        {"socket": socket, "instance": "two"},
    ]
    answers = served.node(script, wanted=wanted)
    assert [_label(answer) for answer in answers] == ["two", "one", "two", "NO_INSTANCE", "one"]
    second.leave()
    assert _label(served.node(script, wanted=[{}])) == "one"
    served.leave()
    assert served.node(script, wanted=[{}]) == "NO_INSTANCE"


_READS = """
    const gate = await connect();
    show((await gate.call("read_file", {path: "a.txt"})).ok);
    gate.close();
"""


@pytest.mark.spec("S0-14")
def test_without_records_the_usual_place_leads_to_the_instance(served: Served) -> None:
    shutil.rmtree(served.home / "instances")
    assert served.node(_READS) is True


@pytest.mark.spec("S0-14")
def test_without_records_the_config_file_leads_to_the_instance(elsewhere: Served) -> None:
    shutil.rmtree(elsewhere.home / "instances")
    config = {"socketPath": str(elsewhere.home.parent / "s" / "other.sock")}
    (elsewhere.home / "config.json").write_text(json.dumps(config))
    assert elsewhere.node(_READS) is True


@needs("root")
def test_what_another_user_listens_at_is_not_spoken_to(served: Served) -> None:
    os.chown(served.home / "run" / "callgate.sock", 1, -1)
    assert served.node("await connect().catch((error) => show(error.code))") == "NO_INSTANCE"


def _label(answer: Any) -> str:
    text = json.dumps(answer)
    return next((label for label in ("one", "two") if f"{label}.txt" in text), answer)
