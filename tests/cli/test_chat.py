"""A chat on the command line: what a line means, what it does, what is remembered, and a piped run."""

import io
import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from polydec.base import files
from polydec.base.errors import RequestError
from polydec.cli import chat_settings, history, orders, prompts
from polydec.cli.chat import wrap_list
from polydec.cli.main import main
from polydec.models.formats import text_rows

TALK = orders.ChatConversation(
    "plain", turns=({"role": "user", "content": "é?"}, {"role": "assistant", "content": "e\n"})
)


def fine(chat):
    """A model that can answer every chat."""


def told(line, chat=TALK, check=fine):
    return orders.run_chat_line(line, chat, check)[1]


def test_a_line_is_a_message_or_an_order():
    assert orders.parse_chat_line("say /help") == orders.SendMessageAction("say /help")
    assert orders.parse_chat_line("//etc/hosts") == orders.SendMessageAction("/etc/hosts")
    assert orders.parse_chat_line("/help ") == orders.ShowHelpAction()
    assert orders.parse_chat_line("/method") == orders.SwitchMethodAction(None, {})
    assert orders.parse_chat_line(
        "/method prompt-lookup  depth=2 ngram=3"
    ) == orders.SwitchMethodAction("prompt-lookup", {"depth": "2", "ngram": "3"})
    assert orders.parse_chat_line("/system\tBe  short. ") == orders.SystemPromptAction("Be  short.")
    assert orders.parse_chat_line("/save my chat.jsonl") == orders.SaveChatAction(
        Path("my chat.jsonl")
    )
    assert orders.parse_chat_line("/save ~/a.jsonl") == orders.SaveChatAction(
        Path.home() / "a.jsonl"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/mehtod plain", "no command /mehtod: the nearest is /method"),
        ("/", "no command /: the nearest is"),
        ("/HELP", "the nearest is /"),
        ("/usr/bin holds what?", "// begins a message with a slash"),
        ("/\x1b[2J", r"no command /\x1b[2J"),
        ("/" + "x" * 10_000, "no command /xxx"),
        ("/help me", "/help stands alone"),
        ("/save", "/save needs the name of a file"),
        ("/save a\0b.jsonl", "no zero byte"),
        ("/save \ud800.jsonl", "half a character"),
        ("/save ~nobody-is-called-so/x.jsonl", "a user who is not there"),
        ("/system \ud800", "half a character"),
        ("/method plain depth", "'depth' has no '='"),
        ("/new chat", "/new stands alone"),
        ("/set temperatur 1", "nothing is called 'temperatur' here: did you mean temperature?"),
        ("/set zzz 1", "/set alone lists all"),
        ("/set =1", "a name before '='"),
        ("/set temperature hot", "temperature is 'hot': it must be a number"),
        ("/set top_p 2", "top_p is 2.0: it must be a number"),
        ("/set max_tokens 0", "max_tokens is 0"),
        ("/set stop \ud800", "half a character"),
        ("/set depth 3", "nothing is called 'depth' here"),
    ],
)
def test_what_is_no_order_is_one_sentence_and_the_chat_stays(line, says):
    chat, said = orders.run_chat_line(line, TALK, fine)
    assert chat is TALK and says in said and len(said) <= 300 and "\n" not in said


def test_help_has_a_line_for_every_order():
    lines = told("/help").split("\n")
    assert len(lines) == len(orders.ORDERS) + len(orders.KEYS)
    assert all(any(line.startswith(word) for line in lines) for word in orders.ORDERS)


def test_a_method_is_shown_checked_and_taken():
    def check(chat):
        if chat.method == "bad":
            raise RequestError("method 'bad' is unknown")

    assert told("/method") == "method plain"
    chat, said = orders.run_chat_line("/method beam width=2", TALK, check)
    assert (chat.method, chat.options, chat.turns) == ("beam", {"width": "2"}, TALK.turns)
    assert said == "method beam width=2 from here on"
    assert orders.run_chat_line("/method bad", chat, check) == (chat, "method 'bad' is unknown")
    assert orders.run_chat_line("/method plain", chat, check)[0].options == {}


def test_a_system_message_stands_first_and_takes_the_place_of_the_one_before():
    chat, _ = orders.run_chat_line("/system One.", TALK, fine)
    chat, _ = orders.run_chat_line("/system Two.", chat, fine)
    assert chat.messages == [{"role": "system", "content": "Two."}, *TALK.turns]
    assert told("/system") == "system message: none"
    assert told("/system", chat) == "system message: Two."


def test_a_field_is_set_told_and_taken_back():
    chat = orders.ChatConversation("plain", begun={"temperature": "0.6"}, turns=TALK.turns)
    assert told("/set temperature", chat).startswith("temperature 0.6: ")
    for line in ("/set temperature 0.7", "/set temperature=0.7", "/set  temperature = 0.7"):
        changed, said = orders.run_chat_line(line, chat, fine)
        assert said == "temperature 0.7 from here on" and changed.turns == chat.turns
        assert changed.settings == {"temperature": "0.7"}
    chat, _ = orders.run_chat_line("/set stop = the END", changed, fine)
    assert chat.settings == {"temperature": "0.7", "stop": "the END"}
    own, rules = chat_settings.changed_values(chat.settings)
    assert own == {"stop": ("the END",)} and rules == {"temperature": 0.7}
    chat, said = orders.run_chat_line("/set temperature default", chat, fine)
    assert chat.settings == {"stop": "the END"} and said == "temperature 0.6 from here on"


def test_an_option_of_the_method_is_set_as_well():
    chat, _ = orders.run_chat_line("/method prompt-lookup loop=false", TALK, fine)
    chat, said = orders.run_chat_line("/set max-ngram 4", chat, fine)
    assert said == "max_ngram 4 from here on" and chat.settings == {}
    assert chat.options == {"loop": "false", "max_ngram": "4"}
    chat, said = orders.run_chat_line("/set loop default", chat, fine)
    assert chat.options == {"max_ngram": "4"} and said == "loop true from here on"


def test_what_the_model_refuses_is_not_set():
    def check(chat):
        if chat.settings:
            raise RequestError("this model has no such rule")

    chat, said = orders.run_chat_line("/set top_k 5", TALK, check)
    assert chat is TALK and said == "this model has no such rule"


def test_a_list_names_everything_that_can_be_set():
    chat = replace(TALK, method="prompt-lookup", settings={"min_p": "0.1"}, begun={"top_k": "9"})
    lines = told("/set", chat).split("\n")
    assert [line.split()[:2] for line in lines][:6] == [
        *(["max_tokens", "none"], ["seed", "0"], ["temperature", "1.0"]),
        *(["top_k", "9"], ["top_p", "1.0"], ["min_p", "0.1"]),
    ]
    words = {line.split()[0] for line in lines[:-1]} | set(
        lines[-1].removeprefix("and at rest: ").split(", ")
    )
    options = chat_settings.method_option_fields("prompt-lookup")
    assert words == {*chat_settings.field_options(), *options}


def test_a_new_chat_forgets_what_was_said_and_nothing_else():
    chat = replace(TALK, system="Be short.", settings={"min_p": "0.1"})
    after, said = orders.run_chat_line("/new", chat, fine)
    assert after == replace(chat, turns=()) and said.startswith("a new conversation")


def test_a_saved_chat_is_read_back_as_a_prompt_and_as_rows_of_training(tmp_path):
    at = tmp_path / "chat.jsonl"
    assert told(f"/save {at}").startswith("2 messages are saved")
    assert json.loads(at.read_text("utf-8")) == {"messages": list(TALK.turns)}
    assert prompts.read_prompt_rows(at)[0].prompt == [TALK.turns[0]]
    assert next(text_rows.read_text_rows(at)).exchange == ("é?", "e\n")
    assert os.listdir(tmp_path) == ["chat.jsonl"]


def test_a_chat_is_saved_over_nothing(tmp_path, monkeypatch):
    there, link = tmp_path / "there.jsonl", tmp_path / "link.jsonl"
    there.write_text("mine")
    link.symlink_to(tmp_path / "nowhere")
    for name, says in (
        (there, "it is there already"),
        (link, "it is there already"),
        (tmp_path / "folder" / "x.jsonl", "there is no folder"),
        (there / "x.jsonl", "there is no folder"),
        (tmp_path / "chat.txt", "must end in .jsonl"),
        (tmp_path, "must end in .jsonl"),
        (tmp_path / ("x" * 300 + ".jsonl"), "cannot be saved"),
    ):
        assert says in told(f"/save {name}")
    monkeypatch.setattr(files.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    assert "full" in told(f"/save {tmp_path / 'new.jsonl'}")
    assert sorted(os.listdir(tmp_path)) == ["link.jsonl", "there.jsonl"]
    assert there.read_text() == "mine"
    assert "nothing has been said" in told("/save x.jsonl", orders.ChatConversation("plain"))


def test_a_history_is_bounded_private_and_shared_by_chats(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(history, "LINES", 3)
    at = history.history_path()
    for line in ("a", "b", "b", " ", "x" * 5000, "es\x1bc", "\ud800", "two\nlines", "ç", "d"):
        history.append_history_line(at, line)
    assert history.read_history(at) == ("b", "ç", "d")
    assert stat.S_IMODE(at.stat().st_mode) == 0o600
    at.write_bytes(b"\xff\n")
    assert history.read_history(at) == ()
    at.write_bytes(b"x\n" * 100_000)
    assert history.read_history(at) == ()
    history.append_history_line(at, "e")
    assert history.read_history(at) == ("e",)


def test_a_line_is_edited_with_what_was_typed_before(tmp_path, monkeypatch):
    added, lines, said = list[str](), iter(["one", "", "two"]), list[str]()
    readline = SimpleNamespace(set_auto_history=lambda on: None, add_history=added.append)
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history.append_history_line(history.history_path(), "zero")
    ask = history.readline_line_reader(readline, "> ", said.append)
    assert [ask(), ask(), ask()] == ["one", "", "two"]
    assert added == ["zero", "one", "two"] and history.read_history(history.history_path()) == (
        "zero",
        "one",
        "two",
    )
    assert said == []


def test_a_history_that_cannot_be_written_is_told_once(tmp_path, monkeypatch):
    added, said = list[str](), list[str]()
    readline = SimpleNamespace(set_auto_history=lambda on: None, add_history=added.append)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("builtins.input", lambda prompt: f"line {len(added)}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    ask = history.readline_line_reader(readline, "> ", said.append)
    assert [ask(), ask()] == added == ["line 0", "line 1"]
    assert len(said) == 1 and "not kept" in said[0]


@pytest.fixture
def chat(monkeypatch, capsys):
    def call(*lines: str, flags=("--max-tokens", "3")) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        argv = ["polydec", "chat", "--model", "zoo:tiny", "--method", "plain", *flags]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as stop:
            main()
        out = capsys.readouterr()
        return int(stop.value.code or 0), out.out, out.err

    return call


def test_a_piped_chat_takes_orders_and_the_model_never_sees_them(chat, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    at = tmp_path / "chat.jsonl"
    code, out, err = chat(
        "/hepl",
        "/method prompt-lookup depth=99",
        "/method llada",
        "/method plian",
        "The fox",
        "/method prompt-lookup depth=2",
        "/system Be short.",
        f"/save {tmp_path / 'nowhere' / 'chat.jsonl'}",
        "//slash",
        f"/save {at}",
        "/quit",
        "never asked",
    )
    assert code == 0 and out.count("> ") == 11
    assert "the nearest is /help" in err and "depth is 99" in err and "did you mean plain?" in err
    assert "method llada decodes" in err and "there is no folder" in err
    assert err.count("plain (") == 1 and err.count("prompt-lookup (") == 1
    saved = json.loads(at.read_text("utf-8"))["messages"]
    assert [(m["role"], m["content"]) for m in saved if m["role"] != "assistant"] == [
        ("system", "Be short."),
        ("user", "The fox"),
        ("user", "/slash"),
    ]
    assert not (tmp_path / "state").exists()  # no terminal, no history


def test_a_system_message_that_is_too_long_leaves_the_chat_as_it_was(chat):
    code, _, err = chat("/system " + "The grey fox. " * 4000, "/system", "The fox")
    assert code == 0 and "system message: none" in err and err.count("plain (") == 1


def test_an_empty_line_asks_again_and_settings_reach_the_model(chat, tmp_path):
    at = tmp_path / "chat.jsonl"
    code, out, err = chat(
        "The fox",
        "",
        "  ",
        "/set max_tokens 1",
        "/set top_p 0.5",
        "/new",
        "The dog",
        f"/save {at}",
    )
    assert code == 0 and out.count("> ") == 9
    assert "plain (law): 3 tokens" in err and "plain (law): 1 tokens" in err
    # a rule that does nothing is told once it is set
    assert "top_p is 0.5 and does nothing here" in err
    saved = json.loads(at.read_text("utf-8"))["messages"]
    assert [m["content"] for m in saved if m["role"] == "user"] == ["The dog"]


def test_ctrl_c_drops_what_is_being_typed_and_the_chat_goes_on(chat, monkeypatch):
    typed = iter(["The fox", KeyboardInterrupt, KeyboardInterrupt, "The dog", EOFError])

    def next_line():
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    class TerminalInput(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("polydec.cli.chat.chat_line_reader", lambda editing: next_line)
    monkeypatch.setattr(io, "StringIO", TerminalInput)
    code, _, err = chat()
    assert code == 0 and err.count("plain (") == 2 and err.count("Ctrl-D ends the chat") == 3


def test_an_answer_has_the_usual_length_where_nobody_says_one(chat, monkeypatch):
    monkeypatch.setattr("polydec.cli.chat.ANSWER_LENGTH", 5)
    code, _, err = chat(
        "The fox",
        "/set max_tokens",
        "/set max_tokens 2",
        "The dog",
        "/set max_tokens default",
        "A",
        flags=(),
    )
    assert code == 0 and "max_tokens 5: tokens of an answer" in err
    assert err.count("plain (law): 5 tokens") == 2 and err.count("plain (law): 2 tokens") == 1
    # who asked for a length knows why the answer ends there
    assert err.count("cut after 5 tokens: /set max_tokens N allows more") == 2
    assert "cut after 2" not in err


def test_an_answer_is_shorter_where_a_conversation_leaves_no_room(chat, monkeypatch):
    monkeypatch.setattr("polydec.cli.chat.ANSWER_LENGTH", 1 << 20)
    code, _, err = chat("The fox", flags=())
    assert code == 0 and err.count("plain (law): ") == 1 and "max_tokens is" not in err


@pytest.mark.parametrize("width", [30, 44, 80, 200])
def test_a_list_breaks_between_words_and_keeps_its_columns(width):
    text = told("/set", replace(TALK, method="prompt-lookup"))
    out = wrap_list(text, width)
    assert out.split() == text.split()
    # only a word that is wider than the window would be cut
    assert max(len(line) for line in out.split("\n")) <= width
    if width == 80:
        column = text.index("tokens of an answer")
        goes_on = [line for line in out.split("\n") if line.startswith("  ")]
        assert goes_on and all(len(line) - len(line.lstrip()) == column for line in goes_on)


def test_in_a_narrow_window_an_explanation_stands_below_its_name():
    out = wrap_list(told("/help"), 46).split("\n")
    at = out.index("/set [NAME VALUE]")
    below = [line for line in out[at + 1 :] if not line.startswith("/")]
    assert out[at + 1].startswith("    a field of sampling") and below[1].startswith("    ")
    assert max(len(line) for line in out) <= 46
    assert out[0] == wrap_list("/help                            this list", 46)
