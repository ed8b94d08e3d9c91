"""Tokens in addition to a tokenizer's own: what tokenizer_config.json, special_tokens_map.json and
added_tokens.json add to tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
"""How a token is found in a text."""


def merged_settings(
    config: Mapping[str, Any], special_tokens_map: Mapping[str, Any]
) -> dict[str, Any]:
    """What two files say of special tokens, as transformers has it.

    The older file counts where the newer one does not list the added tokens.

    Args:
        config: Content of the tokenizer_config.json.
        special_tokens_map: Content of the special_tokens_map.json, the older file.

    Returns:
        The settings of both.
    """
    if not config.get("extra_special_tokens") and "additional_special_tokens" in config:
        config = {**config, "extra_special_tokens": config["additional_special_tokens"]}
    # The newer file lists every added token itself: the older one has no say.
    if "added_tokens_decoder" in config:
        return dict(config)
    special = {
        role: {**token, "special": True} if isinstance(token, Mapping) else token
        for role, token in special_tokens_map.items()
    }
    return {**config, **special}


def add_tokens(
    tokenizer: Tokenizer, settings: Mapping[str, Any], added: Mapping[str, int] | None = None
) -> None:
    """Give a tokenizer the tokens that stand beside its own file, in the order in which
    transformers adds them.

    Args:
        tokenizer: Of the `tokenizers` library. A token that its vocabulary has keeps its id; others
            get the next free ones.
        settings: What `merged_settings` gives, checked (`TokenizerConfig`).
        added: The content of added_tokens.json, tokens with their ids: it counts where the settings
            list none.
    """
    # Three sources: the tokenizer's own file, tokens listed with ids, and tokens that have a role.
    own = tokenizer.get_added_tokens_decoder()
    named = dict(_named(settings))
    extra = [_token(token) for token in _extra(settings)]
    listed = settings.get("added_tokens_decoder")
    if listed is not None:
        by_id = {int(key): _token(token) for key, token in listed.items()}
    else:
        special = {token.content for token in named.values()}
        if settings.get("extra_special_tokens"):  # those of the older map are not counted here
            special |= {token.content for token in extra}
        older = {
            key: AddedToken(name, special=name in special, normalized=name not in special)
            for name, key in (added or {}).items()
        }
        by_id = {**older, **own}
    # Order decides the ids of new tokens: those with an id first, then those that have a role only.
    new = [by_id[key] for key in sorted(by_id)]
    contents = {token.content for token in (*own.values(), *new)}
    for token in (*named.values(), *extra):
        if token.content not in contents:
            contents.add(token.content)
            new.append(token)
    roles = {t.content for t in named.values()}
    for token in new:
        # A token with a role is special, whatever its own entry says.
        token.special = token.special or token.content in roles
    if new:
        tokenizer.add_tokens(new)
    tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens"))


def named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens by their roles, such as bos_token."""
    return {role: token.content for role, token in _named(settings)}


def _named(settings: Mapping[str, Any]) -> Iterator[tuple[str, AddedToken]]:
    extra = settings.get("extra_special_tokens")
    roles = {
        role: token
        for role, token in settings.items()
        if role.endswith("_token") and not role.startswith("add_")
    }
    for role, token in {**roles, **(extra if isinstance(extra, Mapping) else {})}.items():
        if isinstance(token, str) or (
            isinstance(token, Mapping) and isinstance(token.get("content"), str)
        ):
            yield role, _token(token)


def _extra(settings: Mapping[str, Any]) -> list[Any]:
    """Special tokens without a role of their own; the older name of the field counts where the
    newer one says nothing."""
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    if isinstance(extra, list):
        return list(extra)
    return []


def _token(token: Any) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=True)
    flags = {name: token[name] for name in FLAGS if token.get(name) is not None}
    return AddedToken(token["content"], **flags)
