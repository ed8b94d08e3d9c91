"""What is typed in a chat: a message for the model, or an order that begins with a slash."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from polydec.base import files
from polydec.base.edge import error_sentence, escape_control_characters, whole_text
from polydec.base.errors import PolydecError, RequestError
from polydec.cli.flags import split_pairs


@dataclass(frozen=True)
class ChatConversation:
    """A conversation and how it is answered. over: nothing more will be said."""

    method: str
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    system: str | None = None
    turns: tuple[Mapping[str, str], ...] = ()
    over: bool = False

    @property
    def messages(self) -> list[dict[str, str]]:
        """All that the model is shown."""
        if self.system is None:
            system = []
        else:
            system = [{"role": "system", "content": self.system}]
        return [*system, *map(dict, self.turns)]

    @property
    def decoded_by(self) -> str:
        """The method and its options, as `/method` takes them."""
        return " ".join((self.method, *(f"{k}={v}" for k, v in self.options.items())))

    def with_turn(self, role: str, content: str) -> ChatConversation:
        return replace(self, turns=(*self.turns, {"role": role, "content": content}))


Check = Callable[[ChatConversation], None]
"""Raises RequestError where the model cannot answer a chat like this one."""


class ChatAction(Protocol):
    """What a line means."""

    def act(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        """The chat afterwards, and what the user is told. Raises RequestError, and leaves the chat as it is, where it cannot be
        done."""
        ...


@dataclass(frozen=True)
class SendMessageAction:
    """A line for the model, who answers it."""

    text: str

    def act(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        return chat.with_turn("user", self.text), ""


@dataclass(frozen=True)
class ShowHelpAction:
    def act(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        longest = max(len(o.usage) for o in ORDERS.values())
        lines = [f"{o.usage:<{longest}}  {o.help}" for o in ORDERS.values()]
        escape = f"{'//…':<{longest}}  a message that begins with a slash"
        return chat, "\n".join((*lines, escape))


@dataclass(frozen=True)
class SwitchMethodAction:
    """name: None asks for the present one."""

    name: str | None
    options: Mapping[str, str]

    def act(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        if self.name is None:
            return chat, f"method {chat.decoded_by}"
        chat = replace(chat, method=self.name, options=self.options)
        check(chat)
        return chat, f"method {chat.decoded_by} from here on"


@dataclass(frozen=True)
class SystemPromptAction:
    """text: None asks for the present one."""

    text: str | None

    def act(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        if self.text is None:
            return chat, f"system message: {'none' if chat.system is None else chat.system}"
        chat = replace(chat, system=whole_text(self.text, "system"))
        check(chat)
        return chat, "the model is told this from here on"


@dataclass(frozen=True)
class SaveChatAction:
    path: Path

    def act(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        if not chat.turns:
            raise RequestError("nothing has been said yet: there is nothing to save")
        what = f"chat cannot be saved in {str(self.path)!r}"
        folder = self.path.parent
        text = json.dumps({"messages": chat.messages}, ensure_ascii=False) + "\n"
        if self.path.suffix != ".jsonl":
            raise RequestError(f"{what}: its name must end in .jsonl, by which it is known again")
        try:
            if os.path.lexists(self.path):
                raise RequestError(f"{what}: it is there already, so name another file")
            if not folder.is_dir():
                raise RequestError(f"{what}: there is no folder {str(folder)!r}")
            files.replace_file_atomically(
                self.path, lambda at: at.write_text(text, encoding="utf-8")
            )
        except OSError as error:
            raise RequestError(f"{what}: {error.strerror or error}") from None
        return chat, f"{len(chat.turns)} messages are saved in {str(self.path)!r}"


@dataclass(frozen=True)
class QuitChatAction:
    def act(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        return replace(chat, over=True), ""


@dataclass(frozen=True)
class ChatCommand:
    """How an order is written, what it does, and what stands behind its word."""

    usage: str
    help: str
    read: Callable[[str], ChatAction]


def _help(rest: str) -> ShowHelpAction:
    _nothing("/help", rest)
    return ShowHelpAction()


def _quit(rest: str) -> QuitChatAction:
    _nothing("/quit", rest)
    return QuitChatAction()


def _nothing(word: str, rest: str) -> None:
    if rest:
        raise RequestError(f"{word} stands alone: leave {rest!r} out")


def _method(rest: str) -> SwitchMethodAction:
    name, *options = rest.split() or [None]
    return SwitchMethodAction(
        name, split_pairs(f"/method {name}", [o for o in options if o is not None])
    )


def _save(rest: str) -> SaveChatAction:
    if not rest:
        raise RequestError("/save needs the name of a file: /save FILE.jsonl")
    if "\0" in rest:
        raise RequestError("the name of a file holds no zero byte")
    try:
        return SaveChatAction(Path(whole_text(rest, "FILE")).expanduser())
    except RuntimeError:  # ~name, and nobody is called so
        raise RequestError(f"file {rest!r} lies in the folder of a user who is not there") from None


ORDERS = {
    "/help": ChatCommand("/help", "this list", _help),
    "/method": ChatCommand(
        "/method [NAME [option=value …]]",
        "answer by this method; alone: say which one it is (`polydec methods` lists them)",
        _method,
    ),
    "/system": ChatCommand(
        "/system [TEXT]",
        "what the model is told before the conversation; alone: say it",
        lambda rest: SystemPromptAction(rest or None),
    ),
    "/save": ChatCommand(
        "/save FILE.jsonl",
        "write the conversation as a JSON line that `polydec batch` and `--data` read",
        _save,
    ),
    "/quit": ChatCommand("/quit", "end the chat, as an empty line and Ctrl-D do", _quit),
}
"""Every order by its word."""


def parse_chat_line(line: str) -> ChatAction:
    """What a line means: a line that begins with a slash is an order, one that begins with two of them a message without the
    first. Raises RequestError with one sentence for an order that is not there or is not written so."""
    if not line.startswith("/"):
        return SendMessageAction(line)
    if line.startswith("//"):
        return SendMessageAction(line[1:])
    word, *rest = line.split(maxsplit=1)
    if word not in ORDERS:
        near = get_close_matches(word[:100], ORDERS, 1, 0.0)[0]
        raise RequestError(
            f"there is no command {escape_control_characters(word[:60])}: the nearest is {near} "
            "(/help lists all; // begins a message with a slash)"
        )
    return ORDERS[word].read("".join(rest).strip())


def run_chat_line(line: str, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
    """`parse` and do it. Whatever is wrong becomes the sentence that the user is told, and the chat stays as it was."""
    try:
        return parse_chat_line(line).act(chat, check)
    except PolydecError as error:
        return chat, error_sentence(error)
