"""What is typed in a chat: a message for the model, or an order that begins with a slash."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from polydec.base import files
from polydec.base.edge import error_sentence, escape_control_characters, whole_text
from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import as_text
from polydec.cli import chat_settings
from polydec.cli.flags import split_pairs


@dataclass(frozen=True)
class ChatConversation:
    """A conversation and how it is answered.

    Attributes:
        method: Name of the method.
        options: Its options.
        system: The system message; None: none.
        turns: Messages so far, with "role" and "content".
        settings: Fields that `/set` changed, by name, as text.
        begun: Values of all fields as the chat began, as text.
        over: Whether nothing more will be said.
    """

    method: str
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    system: str | None = None
    turns: tuple[Mapping[str, str], ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    begun: Mapping[str, str] = field(default_factory=dict[str, str])
    over: bool = False

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages that the model sees, the system message first."""
        # A template may add a system message of its own where there is none.
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
        """The conversation with one message more.

        Args:
            role: Who speaks: "user" or "assistant".
            content: The message.

        Returns:
            A new conversation.
        """
        return replace(self, turns=(*self.turns, {"role": role, "content": content}))


Check = Callable[[ChatConversation], None]
"""Raises RequestError where the model cannot answer a chat like this one."""


class ChatAction(Protocol):
    """What a typed line means."""

    def carry_out(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        """Carry the action out.

        Args:
            chat: The chat as it is.
            check: Raises RequestError where the model cannot answer a changed chat.

        Returns:
            The chat afterwards, and what the user is told; "" for nothing.

        Raises:
            RequestError: It cannot be done; the chat stays as it is.
        """
        ...


@dataclass(frozen=True)
class SendMessageAction:
    """Send a message to the model, which answers it.

    Attributes:
        text: The message.
    """

    text: str

    def carry_out(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        """Add the user's message.

        Args:
            chat: The chat as it is.
            check: Unused: a message is checked when it is submitted.

        Returns:
            The chat with one turn more, and no notice.
        """
        return chat.with_turn("user", self.text), ""


@dataclass(frozen=True)
class ShowHelpAction:
    """List everything that can be typed."""

    def carry_out(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        """Make the list of orders.

        Args:
            chat: The chat as it is.
            check: Unused: nothing changes.

        Returns:
            The same chat, and the list.
        """
        # Explanations begin in one column, behind the longest order.
        longest = max(len(o.usage) for o in ORDERS.values())
        lines = [f"{o.usage:<{longest}}  {o.help}" for o in ORDERS.values()]
        lines += [f"{key:<{longest}}  {told}" for key, told in KEYS.items()]
        return chat, "\n".join(lines)


@dataclass(frozen=True)
class SwitchMethodAction:
    """Answer by another method from here on.

    Attributes:
        name: Name of the method; None asks for the present one.
        options: Its options.
    """

    name: str | None
    options: Mapping[str, str]

    def carry_out(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        """Switch the method, or say which one it is.

        Args:
            chat: The chat as it is.
            check: Raises RequestError where the model cannot be decoded by the method.

        Returns:
            The chat with the method, and a notice.

        Raises:
            RequestError: The method or an option of it cannot be used.
        """
        if self.name is None:
            return chat, f"method {chat.decoded_by}"
        chat = replace(chat, method=self.name, options=self.options)
        # Checked on the changed chat: a method that cannot be used leaves the old one in place.
        check(chat)
        return chat, f"method {chat.decoded_by} from here on"


@dataclass(frozen=True)
class SystemPromptAction:
    """Change the system message.

    Attributes:
        text: The new message; None asks for the present one.
    """

    text: str | None

    def carry_out(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        """Change the system message, or say what it is.

        Args:
            chat: The chat as it is.
            check: Raises RequestError where the model takes no such message.

        Returns:
            The chat with the message, and a notice.

        Raises:
            RequestError: The message is no whole text, or the model does not take it.
        """
        if self.text is None:
            return chat, f"system message: {'none' if chat.system is None else chat.system}"
        chat = replace(chat, system=whole_text(self.text, "system"))
        # A chat template may refuse system messages.
        check(chat)
        return chat, "the model is told this from here on"


@dataclass(frozen=True)
class SetFieldAction:
    """Change a field of sampling or of the request, or an option of the method.

    Attributes:
        name: The field; None asks for all.
        value: Its value as text, "default" for the one of the beginning; "" asks for the present
            one.
    """

    name: str | None
    value: str

    def carry_out(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        """Change a field, or say what it is.

        Args:
            chat: The chat as it is.
            check: Raises RequestError where the model cannot answer with this value.

        Returns:
            The chat with the value, and a notice.

        Raises:
            RequestError: There is no such field, or the value is not legal.
        """
        if self.name is None:
            told = chat_settings.settings_list(chat.method, chat.options, chat.begun, chat.settings)
            return chat, told
        option = chat_settings.find_option(self.name, chat.method)
        of_method = option.name not in chat_settings.field_options()
        before = chat.options if of_method else chat.settings
        began = as_text(option.default) if of_method else chat.begun.get(option.name)
        if began is None:
            began = as_text(option.default)
        if not self.value:
            return chat, f"{option.name} {before.get(option.name, began)}: {option.help}"
        # Taken out first, so that `default` leaves the same chat as if it had never been set.
        values = {name: value for name, value in before.items() if name != option.name}
        if self.value != chat_settings.DEFAULT:
            # It is converted only to check it: a chat keeps the text that was typed.
            option.convert_value(self.value)
            values[option.name] = self.value
        changed = replace(chat, options=values) if of_method else replace(chat, settings=values)
        # Fields may exclude each other, and a model may be without something that one needs.
        check(changed)
        return changed, f"{option.name} {values.get(option.name, began)} from here on"


@dataclass(frozen=True)
class NewChatAction:
    """Begin anew: what was said is forgotten, and how it is answered stays."""

    def carry_out(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        """Forget all turns.

        Args:
            chat: The chat as it is.
            check: Unused: an empty chat can be answered as before.

        Returns:
            The chat without turns, and a notice.
        """
        return replace(
            chat, turns=()
        ), "a new conversation; method, settings and system message stay"


@dataclass(frozen=True)
class SaveChatAction:
    """Write the conversation to a file.

    Attributes:
        path: The file, which must be new and end in .jsonl.
    """

    path: Path

    def carry_out(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        """Write the conversation as one JSON line.

        Args:
            chat: The chat as it is.
            check: Unused: nothing changes.

        Returns:
            The same chat, and a notice.

        Raises:
            RequestError: Nothing has been said, or the file exists or cannot be written.
        """
        if not chat.turns:
            raise RequestError("nothing has been said yet: there is nothing to save")
        what = f"chat cannot be saved in {str(self.path)!r}"
        folder = self.path.parent
        text = json.dumps({"messages": chat.messages}, ensure_ascii=False) + "\n"
        # By this ending other commands know that the file holds JSON lines.
        if self.path.suffix != ".jsonl":
            raise RequestError(f"{what}: its name must end in .jsonl, by which it is known again")
        try:
            # A dangling link exists too: it must not be written through.
            if os.path.lexists(self.path):
                raise RequestError(f"{what}: it is there already, so name another file")
            # A missing folder is rather a typing error than a wish.
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
    """End the chat."""

    def carry_out(self, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
        """Mark the chat as over.

        Args:
            chat: The chat as it is.
            check: Unused: nothing is answered any more.

        Returns:
            The chat that is over, and no notice.
        """
        return replace(chat, over=True), ""


@dataclass(frozen=True)
class ChatCommand:
    """An order that can be typed.

    Attributes:
        usage: How it is written.
        help: What it does.
        read: Makes an action of what follows its word.
    """

    usage: str
    help: str
    read: Callable[[str], ChatAction]


def _help(rest: str) -> ShowHelpAction:
    _nothing("/help", rest)
    return ShowHelpAction()


def _quit(rest: str) -> QuitChatAction:
    _nothing("/quit", rest)
    return QuitChatAction()


def _new(rest: str) -> NewChatAction:
    _nothing("/new", rest)
    return NewChatAction()


def _set(rest: str) -> SetFieldAction:
    # The name ends at a space or at "=", so that both ways of writing it are understood.
    read = re.fullmatch(r"([^\s=]+)\s*=?\s*(.*)", rest, re.DOTALL)
    if rest and read is None:
        raise RequestError("/set needs a name before '=': /set temperature 0.7")
    if read is None:
        return SetFieldAction(None, "")
    return SetFieldAction(read[1], whole_text(read[2], read[1]))


def _nothing(word: str, rest: str) -> None:
    # A word behind such an order is a mistake that must not pass in silence.
    if rest:
        raise RequestError(f"{word} stands alone: leave {rest!r} out")


def _method(rest: str) -> SwitchMethodAction:
    # Without words the order asks which method is in use.
    name, *options = rest.split() or [None]
    return SwitchMethodAction(
        name, split_pairs(f"/method {name}", [o for o in options if o is not None])
    )


def _save(rest: str) -> SaveChatAction:
    if not rest:
        raise RequestError("/save needs the name of a file: /save FILE.jsonl")
    # The system would cut the name there, or refuse it with an obscure message.
    if "\0" in rest:
        raise RequestError("the name of a file holds no zero byte")
    try:
        return SaveChatAction(Path(whole_text(rest, "FILE")).expanduser())
    except RuntimeError:
        # ~name, and there is no user of that name.
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
    "/set": ChatCommand(
        "/set [NAME VALUE]",
        "a field of sampling or an option of the method (VALUE default: as it began); alone: list them",
        _set,
    ),
    "/new": ChatCommand("/new", "begin a new conversation; settings stay", _new),
    "/save": ChatCommand(
        "/save FILE.jsonl",
        "write the conversation as a JSON line that `polydec batch` and `--data` read",
        _save,
    ),
    "/quit": ChatCommand("/quit", "end the chat, as Ctrl-D does", _quit),
}
"""Every order by its word."""

KEYS = {
    "//…": "a message that begins with a slash",
    "Ctrl-C": "end the answer that is being written, or drop what is being typed",
    "Ctrl-D": "end the chat",
}
"""What else can be typed, and what it does."""


def parse_chat_line(line: str) -> ChatAction:
    """What a line means: with a slash it is an order, with two slashes a message that begins with
    one.

    Raises:
        RequestError: The order is unknown or is not written so.
    """
    if not line.startswith("/"):
        return SendMessageAction(line)
    if line.startswith("//"):
        return SendMessageAction(line[1:])
    # Only the first space parts the order from its text, which may have spaces of its own.
    word, *rest = line.split(maxsplit=1)
    if word not in ORDERS:
        # A cutoff of 0: some order is always the nearest.
        near = get_close_matches(word[:100], ORDERS, 1, 0.0)[0]
        raise RequestError(
            f"there is no command {escape_control_characters(word[:60])}: the nearest is {near} "
            "(/help lists all; // begins a message with a slash)"
        )
    return ORDERS[word].read("".join(rest).strip())


def run_chat_line(line: str, chat: ChatConversation, check: Check) -> tuple[ChatConversation, str]:
    """Parse a line and carry it out. Whatever is wrong becomes a sentence for the user.

    Args:
        line: The line as it is typed.
        chat: The chat as it is.
        check: Raises RequestError where the model cannot answer a changed chat.

    Returns:
        The chat afterwards, unchanged where something is wrong, and what the user is told.
    """
    try:
        return parse_chat_line(line).carry_out(chat, check)
    except PolydecError as error:
        return chat, error_sentence(error)
