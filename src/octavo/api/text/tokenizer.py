"""Text <-> token ids, over the `tokenizers` package: from a tokenizer.json, or from a GGUF vocabulary.

Owns the true bytes of every token (the byte-level alphabet and SentencePiece's ▁ undone), which ids are
special, and where a BOS goes. Knows nothing of chat templates, streams or requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import tokenizers

from octavo.api.text.tokenizer_gguf import GGUFVocabulary, build
from octavo.errors import InvalidRequest, WeightError
from octavo.weights.source import ModelSource

Spelling = Literal["byte_level", "sentencepiece", "wordpiece", "plain"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Tokens that end a turn or a text in one family or another. A GGUF file names only one or two of its own.
_END_TEXTS = (
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>",
    "<eos>", "</s>", "<|return|>", "<|EOT|>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
# Classes whose add_bos_token / add_eos_token rewrite what tokenizer.json says, as they do in transformers.
_OBEY_ADD_BOS = re.compile(r"(Code)?(Llama|Gemma)Tokenizer(Fast)?")
_SPECIAL_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of the byte-level alphabet: printable Latin-1 stands for itself, the rest is moved up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    moved = (byte for byte in range(256) if byte not in set(printable))
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(moved)}


_BYTE_OF = _byte_alphabet()


@dataclass(slots=True)
class _Parts:
    """What a Tokenizer is made of; `load_tokenizer` fills it from either kind of source."""

    core: tokenizers.Tokenizer
    spelling: Spelling
    texts: Sequence[str] | None  # id -> vocabulary entry; None = ask `core`
    added: dict[int, str]  # tokens matched in raw text, with their plain text
    special: frozenset[int]
    unused: frozenset[int]  # ids without meaning: they decode to nothing
    size: int
    strip_first_space: bool
    has_template: bool  # `core` adds BOS and EOS itself
    add_bos: bool
    add_eos: bool
    roles: dict[str, str]  # "bos_token" -> its text
    eos_ids: frozenset[int] = field(default_factory=frozenset)


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads.

    `eos_ids` are the ids that end an answer. `special_texts` maps bos_token, eos_token, pad_token, unk_token
    to their texts (for templates). With `strip_first_space` one leading space of a whole text is not part of
    it (SentencePiece puts a space before the first word): `decode` strips it, users of `token_bytes` must.
    `metadata` is the model's tokenizer_config.json, as it stands.
    """

    def __init__(self, parts: _Parts, metadata: Mapping[str, Any] | None = None) -> None:
        self._parts, self._core = parts, parts.core
        self._plain: tokenizers.Tokenizer | None = None
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = parts.size
        self.strip_first_space = parts.strip_first_space
        self.add_bos = parts.add_bos
        self.special_texts: Mapping[str, str] = parts.roles
        self.metadata: Mapping[str, Any] = metadata or {}
        self.bos_id = self._role("bos_token")
        self.eos_id = self._role("eos_token")
        self.eos_ids = parts.eos_ids | ({self.eos_id} if self.eos_id is not None else set())

    def _role(self, role: str) -> int | None:
        text = self._parts.roles.get(role)
        return None if text is None else self.id_of(text)

    def encode(self, text: str, add_special_tokens: bool, parse_special: bool = True) -> list[int]:
        """Token ids of `text`. Without `parse_special`, text that looks like a special token is plain text.

        A BOS is added at most once: text that already begins with it gets no second one.
        Raises InvalidRequest when `text` holds a lone surrogate, which is no character.
        """
        parts = self._parts
        core = self._core if parse_special else self._without_special()
        try:
            ids: list[int] = core.encode(
                text, add_special_tokens=add_special_tokens and parts.has_template
            ).ids
        except (UnicodeEncodeError, TypeError):
            raise InvalidRequest("the text holds half of a surrogate pair, which is no character") from None
        if not add_special_tokens:
            return ids
        if not parts.has_template:
            if parts.add_eos and self.eos_id is not None and ids[-1:] != [self.eos_id]:
                ids.append(self.eos_id)
            if parts.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
        elif self.bos_id is not None and ids[:2] == [self.bos_id, self.bos_id]:
            del ids[0]
        return ids

    def _without_special(self) -> tokenizers.Tokenizer:
        """The same model, told of no special tokens. It shares the vocabulary, so it costs next to nothing."""
        if self._plain is None:
            parts, core = self._parts, self._core
            plain = tokenizers.Tokenizer(core.model)
            for attribute in ("normalizer", "pre_tokenizer", "post_processor"):
                if (value := getattr(core, attribute)) is not None:
                    setattr(plain, attribute, value)
            added = core.get_added_tokens_decoder()
            plain.add_tokens([token for id, token in added.items() if id not in parts.special])
            self._plain = plain
        return self._plain

    def token_bytes(self, id: int) -> bytes:
        """The bytes that token `id` adds to a text; b"" for an id without meaning. Never raises."""
        known = self._bytes.get(id)
        if known is None:
            known = self._bytes[id] = self._spell(id)
        return known

    def _spell(self, id: int) -> bytes:
        parts = self._parts
        if (added := parts.added.get(id)) is not None:
            return added.encode()
        text = self.token_text(id)
        if text is None or id in parts.unused:
            return b""
        if parts.spelling == "byte_level":
            if all(char in _BYTE_OF for char in text):
                return bytes(_BYTE_OF[char] for char in text)
            return text.encode()
        if parts.spelling == "sentencepiece":
            if match := _BYTE.fullmatch(text):
                return bytes([int(match[1], 16)])
            return text.replace("▁", " ").encode()
        if parts.spelling == "wordpiece":
            return (text[2:] if text.startswith("##") else " " + text).encode()
        return text.encode()

    def decode(self, ids: Iterable[int], skip_special_tokens: bool) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        special = self._parts.special
        kept = [id for id in ids if not (skip_special_tokens and id in special)]
        data = b"".join(map(self.token_bytes, kept))
        if self.strip_first_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def is_special(self, id: int) -> bool:
        return id in self._parts.special

    def token_text(self, id: int) -> str | None:
        """Token `id` as the vocabulary spells it, or None when there is no such token."""
        texts = self._parts.texts
        if texts is not None:
            return texts[id] if 0 <= id < len(texts) else None
        try:
            token: str | None = self._core.id_to_token(id)
        except OverflowError:
            return None
        return token

    def id_of(self, text: str) -> int | None:
        """Id of a token by its spelling in the vocabulary."""
        id: int | None = self._core.token_to_id(text)
        return id

    def tokens(self) -> list[str]:
        """Every token in id order, as the vocabulary spells it ("" where an id is not used)."""
        return [self.token_text(id) or "" for id in range(self.vocab_size)]

    def added_tokens(self) -> dict[int, str]:
        """Id -> text of the tokens that are matched in raw text: special ones and user-defined ones."""
        return dict(self._parts.added)


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """The tokenizer of a model. Raises WeightError when there is none, or when it cannot be built."""
    files = source.tokenizer
    if files.tokenizer_json is not None:
        parts = _from_json(files.tokenizer_json, files.tokenizer_config, source)
    elif files.gguf is not None:
        parts = _from_gguf(build(files.gguf, source.path))
    else:
        raise WeightError(
            f"{source.path} has no tokenizer.json",
            fix="save the tokenizer in the fast format (tokenizer.json) beside the weights",
        )
    parts.eos_ids |= _listed_ids(source.generation_config.get("eos_token_id"))
    if not parts.eos_ids:
        parts.eos_ids = _listed_ids(source.config.get("eos_token_id"))
    return Tokenizer(parts, files.tokenizer_config)


def _listed_ids(value: Any) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(id for id in values if isinstance(id, int) and not isinstance(id, bool) and id >= 0)


def _from_gguf(vocabulary: GGUFVocabulary) -> _Parts:
    texts = vocabulary.texts
    ends = {id for id in vocabulary.special if texts[id] in _END_TEXTS}
    return _Parts(
        core=vocabulary.core,
        spelling=vocabulary.spelling,
        texts=texts,
        added=vocabulary.added,
        special=vocabulary.special,
        unused=vocabulary.unused,
        size=len(texts),
        strip_first_space=vocabulary.space_prefix,
        has_template=False,
        add_bos=vocabulary.add_bos,
        add_eos=vocabulary.add_eos,
        roles=vocabulary.roles,
        eos_ids=frozenset(ends),
    )


def _from_json(path: str, config: Mapping[str, Any], source: ModelSource) -> _Parts:
    try:
        core = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the package raises bare Exception
        raise WeightError(f"{path} is not a tokenizer that can be read: {error}") from None
    core.no_truncation()
    core.no_padding()
    decoders = _flattened(_state(core.decoder))
    added = core.get_added_tokens_decoder()
    spelling = _spelling(decoders)
    texts = {id: token.content for id, token in added.items()}
    if spelling == "sentencepiece":  # tokens such as "▁▁" are matched among the pieces, and mean spaces
        texts = {id: text for id, text in texts.items() if added[id].special or "▁" not in text}
    roles = _roles(core, config, source)
    bos, eos = (
        core.token_to_id(roles[role]) if role in roles else None for role in ("bos_token", "eos_token")
    )
    probe = core.encode("a", add_special_tokens=True).ids
    adds = bos is not None and probe[:1] == [bos], eos is not None and probe[-1:] == [eos]
    wants = _wanted_ends(config, adds)
    return _Parts(
        core=core,
        spelling=spelling,
        texts=None,
        added=texts,
        special=frozenset(id for id, token in added.items() if token.special),
        unused=frozenset(),
        size=core.get_vocab_size(with_added_tokens=True),
        strip_first_space=_strips_first_space(decoders),
        has_template=wants == adds,
        add_bos=wants[0],
        add_eos=wants[1],
        roles=roles,
    )


def _roles(core: tokenizers.Tokenizer, config: Mapping[str, Any], source: ModelSource) -> dict[str, str]:
    """Texts of BOS and the like. Without a tokenizer_config.json the ids of the model's config count."""
    if config:
        texts = {role: _token_text(config.get(role)) for role in _SPECIAL_ROLES}
    else:
        ids = {role: source.config.get(f"{role}_id") for role in ("bos_token", "eos_token")}
        texts = {
            role: core.id_to_token(id)
            for role, id in ids.items()
            if isinstance(id, int) and 0 <= id < 1 << 31
        }
    return {role: text for role, text in texts.items() if text is not None}


def _wanted_ends(config: Mapping[str, Any], adds: tuple[bool, bool]) -> tuple[bool, bool]:
    """(BOS, EOS) to add: what tokenizer.json does, unless the tokenizer's class obeys add_bos_token."""
    wants_bos = config.get("add_bos_token")
    if isinstance(wants_bos, bool) and _OBEY_ADD_BOS.fullmatch(str(config.get("tokenizer_class", ""))):
        return wants_bos, config.get("add_eos_token") is True
    return adds


def _token_text(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _state(component: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(component.__getstate__()) if component is not None else {}
    return state


def _flattened(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder.get("type") == "Sequence":
        return [leaf for child in decoder.get("decoders", []) for leaf in _flattened(child)]
    return [decoder] if decoder else []


def _spelling(decoders: list[dict[str, Any]]) -> Spelling:
    kinds = {decoder.get("type") for decoder in decoders}
    if "ByteLevel" in kinds:
        return "byte_level"
    if kinds & {"Metaspace", "ByteFallback", "Replace"}:
        return "sentencepiece"
    return "wordpiece" if "WordPiece" in kinds else "plain"


def _strips_first_space(decoders: list[dict[str, Any]]) -> bool:
    for decoder in decoders:
        kind = decoder.get("type")
        if kind == "WordPiece" or (kind == "Strip" and decoder.get("start", 0) > 0):
            return True
        if kind == "Metaspace" and decoder.get("prepend_scheme", "always") != "never":
            return True
    return False
