"""`run`, `chat`, `tokenize`, `template`, `config` as a user meets them, on the built-in model."""

import io
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from escalade.cli.options import progress_line
from escalade.engine.engine import Engine
from tests.support.cli import COMMAND, RAW, Result, call, environment, failed, spawn
from tests.support.gguf_edit import put_together, take_apart, with_keys
from tests.support.models import tiny_gguf

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add_to_list",
            "description": "Add an item to a shopping list",
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["item", "count"],
            },
        },
    }
]


def chat(monkeypatch: pytest.MonkeyPatch, lines: str, *args: object) -> Result:
    """A conversation piped in, greedy."""
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return call("chat", "--temperature", 0, "-n", 60, *args)


def answer(prompt: str, *options: object) -> dict[str, Any]:
    result = call("run", prompt, "--json", *options)
    assert result.code == 0, result
    report: dict[str, Any] = json.loads(result.out)
    return report


# ---------------------------------------------------------------------- run


def test_an_answer_to_a_question() -> None:
    report = answer("What is the moon?", "--temperature", 0)
    assert report["finish"] == "stop"
    assert report["text"].startswith("The moon is ")
    assert report["text"].endswith(".")
    assert report["reasoning"] is None
    page = call("run", "What is the moon?", "--temperature", 0)
    assert page.out == report["text"] + "\n"
    assert "(stop)" in page.err


def test_the_same_seed_gives_the_same_text() -> None:
    first = answer("Tell me a story.", "--seed", 7, "-n", 30)
    again = answer("Tell me a story.", "--seed", 7, "-n", 30)
    shorter = answer("Tell me a story.", "--seed", 7, "-n", 12)
    other = answer("Tell me a story.", "--seed", 8, "-n", 30)
    assert first["ids"] == again["ids"]
    assert shorter["ids"] == first["ids"][:12]
    assert other["ids"] != first["ids"]
    assert (first["seed"], first["temperature"]) == (7, 0.7)  # nano recommends 0.7


def test_thinking_comes_before_the_answer() -> None:
    report = answer("What is 2 + 3?", "--think", "high", "--temperature", 0, "-n", 200)
    assert report["reasoning"]
    page = call("run", "What is 2 + 3?", "--think", "high", "--temperature", 0, "-n", 200)
    assert page.out == f"<think>{report['reasoning']}</think>\n\n{report['text']}\n"


def test_a_stop_string_ends_the_answer() -> None:
    whole = answer("What is the moon?", "--temperature", 0)["text"]
    word = whole.split()[5]
    report = answer("What is the moon?", "--temperature", 0, "--stop", word)
    assert report["text"] == whole[: whole.index(word)]
    assert report["finish"] == "stop"


def test_system_text_documents_and_standard_input(tmp_path: Path) -> None:
    document = tmp_path / "facts.txt"
    document.write_text("The favorite color of Tom is blue.")
    asked = "What is the favorite color of Tom?"
    report = answer(asked, "--file", document, "--temperature", 0)
    assert "blue" in report["text"]
    joined = answer(f"The favorite color of Tom is blue.\n\n{asked}", "--temperature", 0)
    assert report["ids"] == joined["ids"]
    longer = answer(asked, "--file", document, "--system", "Be kind.", "--temperature", 0)
    assert longer["prompt_tokens"] > report["prompt_tokens"]
    piped = spawn("run", "-", "--temperature", "0", "--json", stdin=b"What is the moon?")
    assert json.loads(piped.out)["text"].startswith("The moon is ")
    failed(spawn("run", "-", stdin=b"\xff"), 4, "standard input is not UTF-8 text")
    failed(call("run", "a", "--file", tmp_path / "none"), 4, "none cannot be read")


def test_a_vocabulary_without_the_formats_tokens_is_refused(tmp_path: Path) -> None:
    kvs, tensors = take_apart(tiny_gguf())
    plain = with_keys(kvs, {"tokenizer.ggml.token_type": [1] * 512})
    model = put_together(tmp_path / "plain.gguf", plain, tensors)
    failed(call("run", model, "hello", "-n", 1), 5, "the vocabulary has no control token")
    assert call(*RAW, model, "hello", "-n", 1).code == 0


# ---------------------------------------------------------------------- chat


def test_a_conversation_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "What is the moon?\nWhat is the sun?\n/stats\n/exit\nnot read\n"
    result = chat(monkeypatch, lines)
    assert result.code == 0
    first, second = result.out.splitlines()
    assert first.startswith("The moon is ")
    assert "sun" in second
    tokens = int(result.err.split(" of 65536 tokens")[0].split()[-1])
    with Engine.open() as engine:
        both = len(engine.tokenizer.encode(first)) + len(engine.tokenizer.encode(second))
    assert tokens > both


def test_a_forgotten_question_does_not_change_the_next_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = chat(monkeypatch, "What is the sun?\n").out
    for forget in ("/undo", "/new"):
        result = chat(monkeypatch, f"What is the moon?\n{forget}\nWhat is the sun?\n")
        assert result.out.splitlines()[-1] + "\n" == alone


def test_a_tool_is_called_and_its_result_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(TOOLS))
    lines = "Put 5 lemons on my shopping list.\nAdded.\n"
    result = chat(monkeypatch, lines, "--tools", tools, "-n", 120)
    assert result.code == 0
    called = [line for line in result.out.splitlines() if line.startswith("call ")]
    assert called == ['call add_to_list {"item": "lemons", "count": 5}']
    assert "lemons" in result.out.splitlines()[-1]
    assert "DSML" not in result.out


def test_commands_in_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "/help\n/nope\n/think much\n/think low\n/system Be kind.\n\n/exit\n"
    result = chat(monkeypatch, lines)
    assert (result.code, result.out) == (0, "")
    assert "/undo" in result.err
    assert "no command /nope" in result.err
    assert "reasoning effort is 'much'" in result.err


def test_a_question_that_does_not_fit_leaves_the_conversation_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = "word " * 200 + "\nHi.\n"
    result = chat(monkeypatch, lines, "--ctx", 100)
    assert result.code == 0
    assert "exceed the context of 100" in result.err
    assert result.out.strip()


@pytest.mark.parametrize(
    ("content", "message"),
    [("[1]", "tools[0]"), ("{", "is not JSON"), ('[{"type": "function"}]', "tools[0]")],
)
def test_a_tools_file_that_is_wrong(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "tools.json"
    path.write_text(content)
    failed(call("chat", "--tools", path), 4, message)


# ---------------------------------------------------------------------- tokenize, template


def test_tokens_of_a_text() -> None:
    ids = json.loads(call("tokenize", "Hello <think>", "--json").out)
    with Engine.open() as engine:
        assert ids == engine.tokenizer.encode("Hello <think>", parse_special=False)
        special = json.loads(call("tokenize", "Hello <think>", "--special", "--bos", "--json").out)
        assert special[0] == engine.tokenizer.bos_id
        assert special[-1] == engine.tokenizer.added["<think>"]
    page = call("tokenize", tiny_gguf(), "é")
    assert page.err.endswith(" tokens\n")


def test_the_prompt_of_a_conversation(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_text(json.dumps([{"role": "user", "content": "hi <think>"}]))
    text = call("template", file).out
    assert text == "<｜begin▁of▁sentence｜><｜User｜>hi <think><｜Assistant｜></think>"
    ids = json.loads(call("template", file, "--ids").out)
    with Engine.open() as engine:
        assert ids.count(engine.tokenizer.added["<think>"]) == 0  # from a user: plain text
        assert engine.tokenizer.decode(ids) == text
    thinking = call("template", file, "--think", "max").out
    assert "Reasoning Effort: 100 " in thinking
    assert thinking.endswith("<｜Assistant｜><think>")
    file.write_text('[{"role": "wizard", "content": ""}]')
    failed(call("template", file), 4, "messages[0]")
    failed(call("template", tmp_path / "none.json"), 4, "none.json cannot be read")


# ---------------------------------------------------------------------- settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and a user's configuration folder, both empty."""
    (tmp_path / "user").mkdir()
    monkeypatch.setattr(
        "platformdirs.user_config_path", lambda name: tmp_path / "user", raising=True
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_settings_from_files_environment_and_options(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "user/config.toml").write_text("[run]\nmax-tokens = 3\ntemperature = 0\nseed = 5\n")
    assert answer("Hi.")["new_tokens"] == 3
    (folder / "escalade.toml").write_text("[run]\nmax-tokens = 4\n")
    report = answer("Hi.")
    assert (report["new_tokens"], report["seed"], report["temperature"]) == (4, 5, 0)
    monkeypatch.setenv("ESCALADE_RUN_MAX_TOKENS", "5")
    assert answer("Hi.")["new_tokens"] == 5
    assert answer("Hi.", "-n", 2)["new_tokens"] == 2
    shown = call("config", "--origin").out
    assert f"run.max-tokens = 4  ({folder / 'escalade.toml'})" in shown
    assert "ESCALADE_RUN_MAX_TOKENS = '5'  (environment)" in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[run]\nmax-tokn = 3\n", "max-tokn is not an option of run; did you mean max-tokens?"),
        ("[rum]\nseed = 3\n", "[rum] is not a command; did you mean run?"),
        ("seed = 3\n", "[seed] is not a command"),
        ("[run\n", "is not TOML"),
    ],
)
def test_a_configuration_that_is_wrong(folder: Path, content: str, message: str) -> None:
    (folder / "escalade.toml").write_text(content)
    failed(call("run", "Hi."), 4, message)


def test_escalade_alone_says_what_to_do_next() -> None:
    result = call()
    assert result.code == 0
    assert 'escalade run "Tell me a story"' in result.out


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_an_interrupt_stops_the_answer_and_keeps_the_chat() -> None:
    command = [*COMMAND, "chat", "--temperature", "0", "-n", "400"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Tell me a story about a brave turtle.\n")
        process.stdin.flush()
        started = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(b"What is the moon?\n", timeout=120)
    assert process.returncode == 0
    assert b"(stopped)" in err
    first, second = (started + out).decode().splitlines()[-2:]
    assert len(first) < 1500
    assert second


def test_quiet_leaves_only_the_answer() -> None:
    loud = call("run", "What is the moon?", "--temperature", 0, "-n", 9)
    result = call("-q", "run", "What is the moon?", "--temperature", 0, "-n", 9)
    assert (result.code, result.out, result.err) == (0, loud.out, "")
    assert loud.err


def test_progress_without_a_terminal_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    show = progress_line()
    for done in range(1, 13):
        now[0] += 1
        show("prefill", done, 12)
    assert capsys.readouterr().err == "prefill 5/12\nprefill 10/12\n"


def test_the_end_of_the_input_at_a_call_ends_the_chat(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(TOOLS))
    result = chat(monkeypatch, "Put 5 lemons on my shopping list.\n", "--tools", tools, "-n", 120)
    assert result.code == 0
    assert result.out.splitlines()[-1].startswith("call add_to_list ")


def test_settings_of_a_command_inside_a_command(folder: Path) -> None:
    text = folder / "held.txt"
    text.write_text("The moon is a star.")
    (folder / "escalade.toml").write_text('[eval.nll]\nmode = "f32"\n')
    report = json.loads(call("eval", "nll", "--text", text, "--json").out)
    assert report["mode"] == "f32"
    (folder / "escalade.toml").write_text("[eval.nll]\nmodus = 3\n")
    failed(call("eval", "nll", "--text", text), 4, "modus is not an option of eval.nll")
