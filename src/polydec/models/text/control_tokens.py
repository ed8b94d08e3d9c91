"""Control tokens in what users write, as plain text: only those that a chat template writes itself
are tokens.

What users write is marked before a template sees it: two characters of private use stand around
each control token in it. In the text that the template makes, every control token without marks is
the template's own. Those get a spelling that no text has, and a twin of the tokenizer that knows
them by that spelling alone reads all of the text at once, so that it is cut and merged as text
around control tokens always is.

Source: transformers, `apply_chat_template(sanitize_control_tokens=True)`; llama.cpp,
`parse_special`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from polydec.base.errors import RequestError

FIRST = "\uf8f0"
LAST = "\uf8f1"
"""What stands around a control token that a user wrote; in what users write these two are left out.
"""
OWN = "\uf8f2"
END = "\uf8f3"
"""What stands around the number of a control token of the template's own."""
_PRIVATE = re.compile(f"[{FIRST}{LAST}{OWN}{END}]")


class ControlTokens:
    """The control tokens of a tokenizer: its special tokens, and added ones that stand in a chat
    template.

    Args:
        tokenizer: Of the `tokenizers` library.
        templates: The sources of the chat templates.
    """

    def __init__(self, tokenizer: Tokenizer, templates: Iterable[str] = ()) -> None:
        written = "\0".join(templates)
        added = {
            token.content: (token_id, token.special)
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }
        self._tokenizer = tokenizer
        self._ids = {
            name: token_id
            for name, (token_id, special) in added.items()
            if special or (name in written and not name.isspace())
        }
        # A regular expression takes the first alternative that fits: a name that begins another one
        # must come after it.
        longest_first = sorted(self._ids, key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._names = re.compile(names)
        self._marked = re.compile(f"{FIRST}({names}){LAST}|[{FIRST}{LAST}]")
        self._spelled = {name: f"{OWN}{at}{END}" for at, name in enumerate(longest_first)}
        self._twin = _twin(tokenizer, self._spelled)
        # The twin numbers its added tokens anew: here is what each of them is in the real
        # tokenizer.
        self._meant = {
            self._twin.token_to_id(self._spelled.get(name, name)): token_id
            for name, (token_id, _) in added.items()
        }
        # Ids of control tokens that the twin can still reach: by merges of its plain vocabulary.
        self._forbidden = frozenset(self._ids.values()) - self._meant.keys()

    def mark_names(self, text: str, names: Iterable[str]) -> str:
        """A text with marks around some control tokens; the others stay tokens.

        Args:
            text: The text.
            names: Of the control tokens that are plain text in it. Those that are none are left.
        """
        known = [re.escape(name) for name in names if name in self._ids]
        if not known:
            return text
        return re.sub(
            "|".join(known), lambda found: f"{FIRST}{found[0]}{LAST}", _PRIVATE.sub("", text)
        )

    def mark_texts(self, value: Any) -> Any:
        """A text, or lists and dicts whose values are texts, with marks around each control token.

        Names of fields, the role of a message and other values stay.
        """
        if isinstance(value, str):
            return self._names.sub(
                lambda found: f"{FIRST}{found[0]}{LAST}", _PRIVATE.sub("", value)
            )
        if isinstance(value, Mapping):
            return {k: x if k in ("role", "type") else self.mark_texts(x) for k, x in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mark_texts(x) for x in value]
        return value

    def encode_shown(self, shown: str, *, special: bool = False) -> list[int]:
        """Token ids of a text in which what users wrote is marked.

        Args:
            shown: The text.
            special: Whether the tokenizer adds its own marks, such as BOS.

        Raises:
            RequestError: Where the tokenizer makes a control token out of plain text.
        """
        parts = self._marked.split(shown)
        # Splitting with a group gives text and marked names in turn. In the text between them every
        # name is the template's own.
        for at in range(0, len(parts), 2):
            parts[at] = self._names.sub(lambda found: self._spelled[found[0]], parts[at])
        twins = self._twin.encode("".join(part or "" for part in parts), add_special_tokens=False)
        bad = next((x for x in twins.ids if x in self._forbidden), None)
        if bad is not None:
            name = self._tokenizer.id_to_token(bad)
            raise RequestError(
                f"sanitize_control_tokens is true: the tokenizer makes {name!r:.60} of plain text, so it cannot be text here"
            )
        ids = [self._meant.get(x, x) for x in twins.ids]
        if special:
            return self._with_marks(ids)
        return ids

    def _with_marks(self, ids: list[int]) -> list[int]:
        """The ids with what the tokenizer sets before and after every text."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        # Where a short text stands among the marks: they are what is left on both sides.
        at = next(
            (i for i in range(len(whole) - len(bare) + 1) if whole[i : i + len(bare)] == bare), 0
        )
        return [*whole[:at], *ids, *whole[at + len(bare) :]]


def _twin(tokenizer: Tokenizer, spelled: Mapping[str, str]) -> Tokenizer:
    """A tokenizer of the same texts whose control tokens are spelled so.

    Raises:
        RequestError: It has parts that cannot be copied.
    """
    try:
        content = json.loads(tokenizer.to_str())
    except Exception as error:  # the library raises bare Exceptions
        raise RequestError(
            f"sanitize_control_tokens is true: this tokenizer cannot be copied ({error}), so leave it out"
        ) from None
    for token in content["added_tokens"]:
        token["content"] = spelled.get(token["content"], token["content"])
    content["post_processor"] = None
    added = content.pop("added_tokens")
    twin = Tokenizer.from_str(json.dumps({**content, "added_tokens": []}))
    for token in added:
        # Added one by one in the old order: an id that is not of the vocabulary cannot be chosen.
        token.pop("id")
        twin.add_tokens([AddedToken(token.pop("content"), **token)])
    return twin
