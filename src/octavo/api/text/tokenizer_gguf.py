"""A tokenizer rebuilt from the `tokenizer.ggml.*` metadata of a GGUF file.

Two kinds: byte-level BPE ("gpt2": vocabulary, merges, and a pre-tokenizer known by name) and SentencePiece
BPE ("llama": pieces with scores; the merges follow from them). Owns the table of pre-tokenizers.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from octavo.errors import WeightError

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6  # token types; 1 is a normal token
MAX_VOCABULARY_CHARS = 1 << 25  # all pieces together; the largest vocabularies have 2 million
MAX_TOKENS = 1 << 21  # three of them fit one sort key
_SLOT_BITS = 22
_SLOT_SHIFT = np.uint64(64 - _SLOT_BITS)
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """Splits are applied one after another; `gpt2` adds GPT-2's own expression at the end."""

    splits: tuple[str, ...] = ()
    gpt2: bool = False
    nfc: bool = False
    ignore_merges: bool = False  # a whole word that is a token stays one, whatever the merges say
    add_bos: bool = False  # when the file does not say


_GPT2 = _PreTokenizer(gpt2=True)
_DIGITS = _PreTokenizer((r"\p{N}",), gpt2=True)  # digits one by one, then GPT-2
_LLAMA3 = _PreTokenizer(
    (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}",),
    ignore_merges=True,
    add_bos=True,
)
_QWEN2 = _PreTokenizer((rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}",), nfc=True)
_TEKKEN = _PreTokenizer(
    (
        (
            rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ),
    ignore_merges=True,
    add_bos=True,
)
_DEEPSEEK_CODER = _PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"))
_DEFAULT = _PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRE_TOKENIZERS: dict[str, _PreTokenizer] = {
    "default": _DEFAULT,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "codeshell": _DIGITS,
    "exaone": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": _PreTokenizer(_LLAMA3.splits),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
    "deepseek-coder": _DEEPSEEK_CODER,
}


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    core: Tokenizer
    spelling: Literal["byte_level", "sentencepiece"]
    texts: list[str]
    added: dict[int, str]
    special: frozenset[int]
    unused: frozenset[int]
    space_prefix: bool
    add_bos: bool
    add_eos: bool
    roles: dict[str, str]


class _Metadata:
    """Typed reads of `tokenizer.ggml.<key>`; a wrong value is a WeightError that names the key."""

    def __init__(self, metadata: Mapping[str, Any], path: str) -> None:
        self.metadata, self.path = metadata, path

    def bad(self, message: str) -> WeightError:
        return WeightError(f"the tokenizer of {self.path} cannot be built: {message}")

    def strings(self, key: str) -> list[str]:
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        items = list(value) if value is not None and not isinstance(value, str | int | float) else []
        if not items or not isinstance(items[0], str):
            raise self.bad(f"tokenizer.ggml.{key} is no list of strings")
        return items

    def numbers(self, key: str, count: int, kinds: str) -> np.ndarray[Any, np.dtype[Any]] | None:
        """`kinds`: numpy's letters of the kinds allowed, "iu" for integers, "f" for floats."""
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.size != count or value.dtype.kind not in kinds:
            raise self.bad(
                f"tokenizer.ggml.{key} is no list of {count} numbers of the right kind, one a token"
            )
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            raise self.bad(f"tokenizer.ggml.{key} is {value!r}, not true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, str):
            raise self.bad(f"tokenizer.ggml.{key} is {value!r}, not a string")
        return value


def build(metadata: Mapping[str, Any], path: str) -> GGUFVocabulary:
    """The tokenizer that `metadata` describes. Raises WeightError when it is malformed or of another kind."""
    data = _Metadata(metadata, path)
    kind = data.text("model", "absent")
    if kind not in ("gpt2", "llama"):
        raise data.bad(
            f"tokenizer.ggml.model is {kind!r}; 'gpt2' (byte-level BPE) and 'llama' (SentencePiece) are read"
        )
    with _collector_paused():
        return _build(data, kind)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Half a million small tuples, all of which stay: collecting in between doubles the time and frees nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _build(data: _Metadata, kind: str) -> GGUFVocabulary:
    texts = data.strings("tokens")
    types = data.numbers("token_type", len(texts), "iu")
    kinds = np.ones(len(texts), np.int32) if types is None else types.astype(np.int32)
    if kind == "gpt2":
        pre = PRE_TOKENIZERS.get(data.text("pre", "default"))
        if pre is None:
            raise data.bad(
                f"its pre-tokenizer is {data.text('pre', '')!r}; known are {', '.join(PRE_TOKENIZERS)}"
            )
        core, space_prefix = _byte_level(data, texts, pre), False
    else:
        pre, space_prefix = None, data.flag("add_space_prefix", True)
        core = _sentencepiece(data, texts, kinds, space_prefix)
    special = _ids(kinds, _CONTROL, _UNKNOWN)
    added = {id: texts[id] for id in sorted(special | _ids(kinds, _USER_DEFINED)) if texts[id]}
    core.add_tokens([AddedToken(text, normalized=False, special=id in special) for id, text in added.items()])
    return GGUFVocabulary(
        core=core,
        spelling="byte_level" if pre else "sentencepiece",
        texts=texts,
        added=added,
        special=special,
        unused=_ids(kinds, _UNUSED),
        space_prefix=space_prefix,
        add_bos=data.flag("add_bos_token", pre.add_bos if pre else True),
        add_eos=data.flag("add_eos_token", False),
        roles=_roles(data, texts),
    )


def _ids(kinds: np.ndarray[Any, np.dtype[np.int32]], *wanted: int) -> frozenset[int]:
    return frozenset(np.flatnonzero(np.isin(kinds, wanted)).tolist())


def _roles(data: _Metadata, texts: list[str]) -> dict[str, str]:
    roles: dict[str, str] = {}
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        id = data.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if id is None:
            continue
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < len(texts):
            raise data.bad(f"tokenizer.ggml.{key}_token_id is {id!r}; the vocabulary has {len(texts)} tokens")
        roles[f"{role}_token"] = texts[id]
    return roles


def _vocabulary(texts: list[str]) -> dict[str, int]:
    vocabulary = dict(zip(texts, range(len(texts)), strict=True))
    if len(vocabulary) != len(texts):  # a text that is there twice keeps its first id
        vocabulary = dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))
    return vocabulary


def _byte_level(data: _Metadata, texts: list[str], pre: _PreTokenizer) -> Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in data.strings("merges")]
    try:
        core = Tokenizer(
            models.BPE(
                _vocabulary(texts), cast("list[tuple[str, str]]", merges), ignore_merges=pre.ignore_merges
            )
        )
    except Exception as error:  # the package raises bare Exception
        raise data.bad(f"its merges do not fit its vocabulary ({error})") from None
    steps: list[Any] = [pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.gpt2))
    core.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre.nfc:
        core.normalizer = normalizers.NFC()
    return core


def _sentencepiece(
    data: _Metadata, texts: list[str], kinds: np.ndarray[Any, np.dtype[np.int32]], space_prefix: bool
) -> Tokenizer:
    scores = data.numbers("scores", len(texts), "f")
    if scores is None or not np.isfinite(scores).all():
        raise data.bad("tokenizer.ggml.scores is missing or holds a value that is no number")
    user_defined = _ids(kinds, _USER_DEFINED)
    for id in user_defined:  # matched in raw text, where a space is a space
        texts[id] = texts[id].replace("▁", " ")
    if len(texts) > MAX_TOKENS or sum(map(len, texts)) > MAX_VOCABULARY_CHARS:
        raise data.bad(f"it has more than {MAX_TOKENS} pieces or {MAX_VOCABULARY_CHARS} characters in them")
    vocabulary = _vocabulary(texts)
    # Only normal pieces come about by merging: control tokens must never appear out of plain text.
    pieces = {text: id for text, id in vocabulary.items() if kinds[id] == 1}
    unknown = data.metadata.get("tokenizer.ggml.unknown_token_id")
    unknown_text = texts[unknown] if isinstance(unknown, int) and 0 <= unknown < len(texts) else None
    has_bytes = len(_ids(kinds, _BYTE)) == 256
    try:
        core = Tokenizer(
            models.BPE(
                vocabulary,
                _merges(pieces, scores),
                unk_token=unknown_text,
                fuse_unk=True,
                byte_fallback=has_bytes,
            )
        )
    except Exception as error:  # the package raises bare Exception
        raise data.bad(f"its pieces do not make a BPE model ({error})") from None
    steps: list[Any] = [normalizers.Prepend("▁")] if space_prefix else []
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    return core


def _merges(pieces: dict[str, int], scores: np.ndarray[Any, np.dtype[Any]]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, best score first, then by the ids of its parts.

    SentencePiece joins the two neighbours whose union scores best, so the order of scores is the order of merges.
    Both halves of every cut are looked up at once, by a polynomial hash modulo 2**64 of their characters.
    """
    texts = list(pieces)
    ids = np.fromiter(pieces.values(), np.int64, len(texts))  # [pieces]
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))  # [pieces] in characters
    starts = np.concatenate(([0], ends[:-1]))
    chars = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4").astype(np.uint64) + np.uint64(1)
    powers = np.full(chars.size + 1, _BASE, np.uint64)
    inverse = np.full(chars.size + 1, pow(_BASE, -1, 1 << 64), np.uint64)
    powers[0] = inverse[0] = 1
    np.cumprod(powers, out=powers)
    np.cumprod(inverse, out=inverse)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(chars * powers[:-1])))  # [characters + 1]

    whole = (sums[ends] - sums[starts]) * inverse[starts]
    slots = np.full(1 << _SLOT_BITS, -1, np.int32)  # most halves are no pieces: this drops them at once
    slots[whole >> _SLOT_SHIFT] = np.arange(len(texts), dtype=np.int32)

    owner = np.repeat(np.arange(len(texts)), ends - starts)  # [characters] piece of each
    cuts = np.arange(chars.size)
    inside = cuts != starts[owner]
    owner, cuts = owner[inside], cuts[inside]
    left = (sums[cuts] - sums[starts[owner]]) * inverse[starts[owner]]
    right = (sums[ends[owner]] - sums[cuts]) * inverse[cuts]
    likely = (slots[left >> _SLOT_SHIFT] >= 0) & (slots[right >> _SLOT_SHIFT] >= 0)
    owner, left, right = owner[likely], left[likely], right[likely]
    by_hash = np.argsort(whole)
    one, two = (_piece_of(half, whole, slots, by_hash) for half in (left, right))
    found = (one >= 0) & (two >= 0)
    owner, one, two = owner[found], one[found], two[found]
    rank = np.unique(-scores[ids].astype(np.float64), return_inverse=True)[1].astype(np.int64)
    order = np.argsort(rank[owner] << 42 | ids[one] << 21 | ids[two])
    triples = zip(owner[order].tolist(), one[order].tolist(), two[order].tolist(), strict=True)
    # The comparison makes a chance collision of hashes harmless.
    return [(texts[a], texts[b]) for piece, a, b in triples if texts[a] + texts[b] == texts[piece]]


def _piece_of(
    hashes: np.ndarray[Any, np.dtype[np.uint64]],
    whole: np.ndarray[Any, np.dtype[np.uint64]],
    slots: np.ndarray[Any, np.dtype[np.int32]],
    by_hash: np.ndarray[Any, np.dtype[np.int64]],
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Index of the piece with each hash, or -1. Pieces that share a slot are told apart by a search."""
    at: np.ndarray[Any, np.dtype[np.int64]] = slots[hashes >> _SLOT_SHIFT].astype(np.int64)
    shared = np.flatnonzero(whole[at] != hashes)
    places = np.searchsorted(whole[by_hash], hashes[shared]).clip(max=whole.size - 1)
    at[shared] = by_hash[places]
    at[whole[at] != hashes] = -1
    return at
