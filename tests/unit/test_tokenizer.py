"""Tokenizers: rebuilt from GGUF metadata and read from tokenizer.json.

tokenizer_vectors.json holds ids made with transformers' tokenizers of the same files, with two repairs where its
GGUF conversion drops a step that upstream has: single digits (SmolLM2) and NFC (Qwen).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.api.text.tokenizer import Tokenizer, load_tokenizer
from octavo.api.text.tokenizer_gguf import build
from octavo.errors import InvalidRequest, WeightError
from octavo.weights.load import open_model
from octavo.weights.source import ModelSource, TokenizerFiles

VECTORS = json.loads((Path(__file__).parent / "tokenizer_vectors.json").read_text(encoding="utf-8"))


def from_metadata(metadata: dict[str, Any], **source: Any) -> Tokenizer:
    full = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return load_tokenizer(ModelSource("x", "gguf", {}, {}, TokenizerFiles(gguf=full), **source))


def byte_level(pre: str = "gpt-2", **changes: Any) -> dict[str, Any]:
    alphabet = [
        *map(chr, [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x100, 0x144)])
    ]
    texts = ["<s>", "</s>", "<|user|>", "<tool>", *alphabet, "He", "ll", "Hell", "Hello", "Ġw", "12", "ĠĠ"]
    types = np.ones(len(texts), np.int32)
    types[:3], types[3] = 3, 4
    merges = ["H e", "l l", "He ll", "Hell o", "Ġ w", "1 2", "Ġ Ġ"]
    base = {"model": "gpt2", "pre": pre, "tokens": texts, "token_type": types, "merges": merges}
    return base | {"bos_token_id": 0, "eos_token_id": 1} | changes


def sentencepiece(**changes: Any) -> dict[str, Any]:
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    pieces += [
        ("▁▁", -9.0, 4),
        ("▁a", -1.0, 1),
        ("ab", -2.0, 1),
        ("abc", -3.0, 1),
        ("bc", -1.5, 1),
        ("▁abc", -4.0, 1),
    ]
    pieces += [(char, -50.0 - index, 1) for index, char in enumerate("▁abcs/<>")]
    pieces += [("</", -5.0, 1), ("s>", -5.5, 1)]
    texts, scores, types = (list(column) for column in zip(*pieces, strict=True))
    base = {"model": "llama", "tokens": texts, "scores": np.float32(scores), "token_type": np.int32(types)}
    return base | {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} | changes


def spelled(tokenizer: Tokenizer, text: str, **options: Any) -> list[str | None]:
    return [tokenizer.token_text(id) for id in tokenizer.encode(text, False, **options)]


def test_byte_level_merges_and_pre_tokenizers() -> None:
    assert spelled(from_metadata(byte_level()), "Hello  w12") == ["Hello", "Ġ", "Ġw", "12"]
    assert spelled(from_metadata(byte_level("smollm")), "Hello 12") == ["Hello", "Ġ", "1", "2"]
    assert spelled(from_metadata(byte_level("qwen2")), "w12") == ["w", "1", "2"]
    assert spelled(from_metadata(byte_level("llama-bpe")), "w12") == ["w", "12"]


def test_nfc_only_where_upstream_has_it() -> None:
    assert spelled(from_metadata(byte_level("qwen2")), "e\u0301") == ["Ã", "©"]
    assert spelled(from_metadata(byte_level("llama-bpe")), "e\u0301") == ["e", "Ì", "ģ"]


def test_special_tokens_in_text() -> None:
    tokenizer = from_metadata(byte_level())
    assert tokenizer.encode("<|user|>Hello</s>", False) == [2, tokenizer.id_of("Hello"), 1]
    plain = tokenizer.encode("<|user|><tool>", False, parse_special=False)
    assert 2 not in plain and plain[-1] == 3  # user-defined tokens are no control tokens
    assert tokenizer.decode(plain, True) == "<|user|><tool>"
    assert (
        tokenizer.decode([2, 3, 1], True) == "<tool>"
        and tokenizer.decode([2, 3, 1], False) == "<|user|><tool></s>"
    )
    assert [tokenizer.is_special(id) for id in range(4)] == [True, True, True, False]
    assert tokenizer.added_tokens() == {0: "<s>", 1: "</s>", 2: "<|user|>", 3: "<tool>"}


def test_bos_is_added_once_and_only_when_the_file_says_so() -> None:
    hello = from_metadata(byte_level()).encode("Hello", False)
    assert from_metadata(byte_level()).encode("Hello", True) == hello
    adds = from_metadata(byte_level(add_bos_token=True, add_eos_token=True))
    assert adds.add_bos and adds.encode("Hello", True) == [0, *hello, 1]
    assert adds.encode("<s>Hello", True) == [0, *hello, 1]
    assert adds.encode("", True) == [0, 1] and adds.encode("<s>", False) == [0]
    assert from_metadata(byte_level("llama-bpe")).add_bos is True
    assert from_metadata(byte_level("llama-bpe", add_bos_token=False)).add_bos is False


def test_eos_ids_come_from_all_sources() -> None:
    tokenizer = from_metadata(byte_level(), generation_config={"eos_token_id": [1, 2]})
    assert tokenizer.eos_ids == {1, 2} and tokenizer.eos_id == 1 and tokenizer.bos_id == 0
    assert tokenizer.special_texts == {"bos_token": "<s>", "eos_token": "</s>"}
    chat = byte_level()
    chat["tokens"][2] = "<|im_end|>"
    assert from_metadata(chat).eos_ids == {1, 2}


def test_token_bytes_of_strange_ids() -> None:
    metadata = byte_level()
    metadata["token_type"][-1] = 5
    tokenizer = from_metadata(metadata)
    size = tokenizer.vocab_size
    assert [tokenizer.token_bytes(id) for id in (-1, size, 1 << 40, size - 1)] == [b""] * 4
    assert tokenizer.token_bytes(2) == b"<|user|>" and tokenizer.token_text(size) is None
    assert len(tokenizer.tokens()) == size


def test_bytes_concatenate_to_the_decoded_text() -> None:
    rng = random.Random(1)
    for metadata in (byte_level(), sentencepiece(), sentencepiece(add_space_prefix=False)):
        tokenizer = from_metadata(metadata)
        for _ in range(50):
            ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(30))]
            data = b"".join(map(tokenizer.token_bytes, ids))
            if tokenizer.strip_first_space:
                data = data.removeprefix(b" ")
            assert tokenizer.decode(ids, False) == data.decode("utf-8", "replace")


def test_sentencepiece_joins_by_score() -> None:
    tokenizer = from_metadata(sentencepiece(add_space_prefix=False, add_bos_token=False))
    assert spelled(tokenizer, "abc") == ["abc"]  # b+c first (-1.5), then a+bc makes abc
    assert spelled(tokenizer, " a") == ["▁a"]
    assert not tokenizer.strip_first_space
    assert tokenizer.decode(tokenizer.encode(" abc a", False), False) == " abc a"


def test_sentencepiece_space_prefix() -> None:
    tokenizer = from_metadata(sentencepiece())
    assert tokenizer.strip_first_space and tokenizer.add_bos
    ids = tokenizer.encode("abc", True)
    assert ids[0] == 1 and [tokenizer.token_text(id) for id in ids[1:]] == ["▁abc"]
    assert tokenizer.decode(ids, True) == "abc" and tokenizer.encode("", True) == [1]


def test_sentencepiece_byte_fallback_and_space_runs() -> None:
    tokenizer = from_metadata(sentencepiece(add_space_prefix=False))
    ids = tokenizer.encode("é", False)
    assert [tokenizer.token_bytes(id) for id in ids] == [b"\xc3", b"\xa9"] and tokenizer.decode(
        ids, False
    ) == "é"
    assert tokenizer.encode("a  b", False)[1] == tokenizer.id_of("  ")
    assert tokenizer.token_bytes(tokenizer.id_of("  ")) == b"  "
    assert tokenizer.decode(tokenizer.encode("a  b", False), False) == "a  b"


def test_control_tokens_never_come_from_plain_text() -> None:
    tokenizer = from_metadata(sentencepiece(add_space_prefix=False))
    assert tokenizer.encode("</s>", False) == [2]
    assert spelled(tokenizer, "</s>", parse_special=False) == ["</", "s>"]


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"surrogate"):
        from_metadata(byte_level()).encode("a\ud800", False)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "bert"}, "'bert'; 'gpt2'"),
        ({"pre": "martian"}, "'martian'; known are"),
        ({"tokens": 7}, "no list of strings"),
        ({"token_type": np.ones(3, np.int32)}, "one a token"),
        ({"merges": ["no-space"]}, "merges do not fit"),
        ({"merges": ["never there"]}, "merges do not fit"),
        ({"bos_token_id": 10**6}, "the vocabulary has"),
        ({"add_bos_token": 1}, "not true or false"),
        ({"model": "llama"}, "scores is missing"),
    ],
)
def test_malformed_metadata(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(WeightError, match=why):
        from_metadata(byte_level(**changes))


def test_a_text_that_is_there_twice_keeps_its_first_id() -> None:
    metadata = byte_level()
    metadata["tokens"] = [*metadata["tokens"], "Hello"]
    metadata["token_type"] = np.append(metadata["token_type"], np.int32(1))
    tokenizer = from_metadata(metadata)
    assert tokenizer.encode("Hello", False) == [metadata["tokens"].index("Hello")]
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b"Hello"


def saved(tmp_path: Path, metadata: dict[str, Any], config: dict[str, Any], decoder: Any) -> Tokenizer:
    """The same tokenizer through a tokenizer.json."""
    from tokenizers import processors

    core = build({f"tokenizer.ggml.{key}": value for key, value in metadata.items()}, "x").core
    core.decoder = decoder
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))]
    )
    path = tmp_path / "tokenizer.json"
    core.save(str(path))
    files = TokenizerFiles(str(path), config)
    return load_tokenizer(ModelSource("x", "safetensors", {"eos_token_id": 1}, {}, files))


def test_tokenizer_json_byte_level(tmp_path: Path) -> None:
    from tokenizers import decoders

    tokenizer = saved(
        tmp_path, byte_level(), {"bos_token": "<s>", "eos_token": {"content": "</s>"}}, decoders.ByteLevel()
    )
    same = from_metadata(byte_level(add_bos_token=True))
    assert tokenizer.add_bos and tokenizer.bos_id == 0 and tokenizer.eos_ids == {1}
    for text in ("Hello é  w", "<s>Hello", "", "<|user|>x"):
        assert tokenizer.encode(text, True) == same.encode(text, True)
        assert tokenizer.encode(text, False, False) == same.encode(text, False, False)
    assert all(tokenizer.token_bytes(id) == same.token_bytes(id) for id in range(same.vocab_size + 2))
    assert tokenizer.vocab_size == same.vocab_size and not tokenizer.strip_first_space


def test_tokenizer_json_obeys_add_bos_token_of_the_classes_that_have_it(tmp_path: Path) -> None:
    from tokenizers import decoders

    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}
    other = saved(
        tmp_path, byte_level(), {**config, "tokenizer_class": "GPT2Tokenizer"}, decoders.ByteLevel()
    )
    assert other.encode("Hello", True)[0] == 0
    llama = saved(
        tmp_path, byte_level(), {**config, "tokenizer_class": "LlamaTokenizer"}, decoders.ByteLevel()
    )
    assert llama.encode("Hello", True) == llama.encode("Hello", False) and not llama.add_bos


def test_tokenizer_json_sentencepiece(tmp_path: Path) -> None:
    from tokenizers import decoders

    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer = saved(tmp_path, sentencepiece(), {"bos_token": "<s>"}, decoders.Sequence(steps))
    same = from_metadata(sentencepiece())
    assert tokenizer.strip_first_space and tokenizer.encode("abc é", True) == same.encode("abc é", True)
    assert all(tokenizer.token_bytes(id) == same.token_bytes(id) for id in range(same.vocab_size))
    assert tokenizer.decode(tokenizer.encode("abc é", True), True) == "abc é"


def test_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"no tokenizer.json"):
        load_tokenizer(ModelSource("x", "safetensors", {}, {}, TokenizerFiles()))
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(WeightError, match=r"cannot be read|not a tokenizer"):
        load_tokenizer(ModelSource("x", "safetensors", {}, {}, TokenizerFiles(str(path))))


def check_vectors(tokenizer: Tokenizer, name: str) -> None:
    for text, ids in zip(VECTORS["texts"], VECTORS[name], strict=True):
        assert tokenizer.encode(text, False) == ids, text
        if "e\u0301" not in text:  # NFC changes it
            assert tokenizer.decode(ids, False) == text


def test_smollm2(smollm2_path: str) -> None:
    tokenizer = load_tokenizer(open_model(smollm2_path))
    check_vectors(tokenizer, "smollm2")
    assert (
        tokenizer.vocab_size == 49152
        and tokenizer.bos_id == 1
        and tokenizer.eos_id == 2
        and not tokenizer.add_bos
    )
    ids = [random.Random(2).randrange(tokenizer.vocab_size) for _ in range(300)]
    whole = b"".join(map(tokenizer.token_bytes, ids))
    assert tokenizer.decode(ids, False) == whole.decode("utf-8", "replace")


def test_gemma3(gemma3_path: str) -> None:
    tokenizer = load_tokenizer(open_model(gemma3_path))
    check_vectors(tokenizer, "gemma3-270m")
    assert (
        tokenizer.add_bos
        and tokenizer.encode("<bos>x", True)[:2] != [2, 2]
        and not tokenizer.strip_first_space
    )
    assert tokenizer.eos_ids == {1, 106}


@pytest.mark.large
def test_qwen(qwen_small_path: str) -> None:
    tokenizer = load_tokenizer(open_model(qwen_small_path))
    check_vectors(tokenizer, "qwen2.5-coder-0.5b")
    assert tokenizer.eos_ids == {151643, 151645} and not tokenizer.add_bos
