"""Open a model on disk: a directory in Hugging Face's layout, or one GGUF file.

Reads headers and small JSON files only; tensor bytes are mapped when asked for. Refuses formats that can
run code when loaded. Knows no model's mathematics: `check_tensors` compares what a program wants with
what the files hold.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from octavo import env
from octavo.errors import WeightError
from octavo.quant import BLOCKS
from octavo.weights.gguf import read_gguf
from octavo.weights.names import shortest, translate
from octavo.weights.safetensors import read_safetensors, read_sharded, renamed
from octavo.weights.source import ModelSource, TensorInfo, TokenizerFiles

MAX_JSON_BYTES = 1 << 26
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_SHOWN = 20  # names listed of each kind of problem

# A multimodal checkpoint nests its text model: these prefixes lead to it, the others are other towers.
_TEXT_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.", ""),
)
_OTHER_TOWERS = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
_TEXT_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    # model_type -> that of its text model, and the values that its config.json leaves out
    "mistral3": ("mistral", {}),
    "gemma3": (
        "gemma3_text",
        {
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "query_pre_attn_scalar": 256,
            "sliding_window_pattern": 6,
            "max_position_embeddings": 131072,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
        },
    ),
}
_HARMLESS = re.compile(
    r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)|.*\.attn\.(masked_)?bias|.*\.position_ids|rope_freqs\.weight"
)


def open_model(path: str) -> ModelSource:
    """The model at `path`. Raises WeightError, which says what was found and what would be read."""
    if os.path.isdir(path):
        return _open_directory(os.path.abspath(path))
    if not os.path.isfile(path):
        raise WeightError(f"{path} does not exist", fix="check the path")
    if path.endswith(_PICKLES):
        raise _pickle_refused([path])
    if path.endswith(".safetensors"):
        raise WeightError(
            f"{path} holds tensors but no configuration", fix="give the directory that it lies in"
        )
    if not path.endswith(".gguf") and not _begins_as_gguf(path):
        raise WeightError(
            f"{path} is not a model",
            fix="give a .gguf file, a directory with config.json and .safetensors files, or a name "
            f"that `{env.command('pull --list')}` shows",
        )
    return _open_gguf(os.path.abspath(path))


def _begins_as_gguf(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"GGUF"


def _pickle_refused(files: list[str]) -> WeightError:
    return WeightError(
        f"{', '.join(os.path.basename(file) for file in files[:5])}: pickle files can run any code when loaded,"
        " so they are not read",
        fix="convert the model to .safetensors or .gguf",
    )


def _open_gguf(path: str) -> ModelSource:
    file = read_gguf(path)
    config, tensors = translate(file)
    metadata = file.metadata
    eos = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    generation: dict[str, Any] = {"eos_token_id": [id for id in dict.fromkeys(eos) if isinstance(id, int)]}
    for key, theirs in (("temperature", "temp"), ("top_k", "top_k"), ("top_p", "top_p"), ("min_p", "min_p")):
        value = metadata.get(f"general.sampling.{theirs}")
        if isinstance(value, int | float):
            generation[key] = shortest(value) if isinstance(value, float) else value
    template = metadata.get("tokenizer.chat_template")
    name = metadata.get("general.name")
    return ModelSource(
        path=path,
        format="gguf",
        config=config,
        tensors=tensors,
        tokenizer=TokenizerFiles(gguf={k: v for k, v in metadata.items() if k.startswith("tokenizer.")}),
        generation_config=generation,
        chat_template=template if isinstance(template, str) else None,
        name=name if isinstance(name, str) and name else os.path.splitext(os.path.basename(path))[0],
    )


def _open_directory(path: str) -> ModelSource:
    names = sorted(os.listdir(path))
    if "config.json" not in names:
        ggufs = [name for name in names if name.endswith(".gguf")]
        if len(ggufs) == 1:
            return _open_gguf(os.path.join(path, ggufs[0]))
        if ggufs:
            raise WeightError(
                f"{path} holds {len(ggufs)} GGUF files: {', '.join(ggufs[:10])}", fix="name one of them"
            )
        raise WeightError(
            f"{path} holds neither config.json nor a .gguf file", fix="give a model's directory"
        )
    config = _json_object(os.path.join(path, "config.json"))
    if not isinstance(config.get("model_type"), str):
        raise WeightError(
            f"{path}/config.json has no model_type", fix="save the model with its configuration"
        )
    quantised = config.get("quantization_config")
    if isinstance(quantised, Mapping):
        raise WeightError(
            f"{path} is quantised by {quantised.get('quant_method', 'an unnamed method')!r}, which is not read",
            fix="use a GGUF file, or the unquantised safetensors",
        )
    tensors = _directory_tensors(path, names)
    config, tensors = _text_model(path, config, tensors)
    if "lm_head.weight" not in tensors:
        config.setdefault("tie_word_embeddings", True)
    tokenizer = os.path.join(path, "tokenizer.json")
    tokenizer_config = _json_object(os.path.join(path, "tokenizer_config.json"), optional=True)
    return ModelSource(
        path=path,
        format="safetensors",
        config=config,
        tensors=tensors,
        tokenizer=TokenizerFiles(tokenizer if "tokenizer.json" in names else None, tokenizer_config),
        generation_config=_json_object(os.path.join(path, "generation_config.json"), optional=True),
        chat_template=_chat_template(path, tokenizer_config),
        name=os.path.basename(path),
    )


def _directory_tensors(path: str, names: list[str]) -> dict[str, TensorInfo]:
    if _INDEX in names:
        return read_sharded(path, _INDEX)
    tensors: dict[str, TensorInfo] = {}
    for file in (name for name in names if name.endswith(".safetensors")):
        for name, info in read_safetensors(os.path.join(path, file)).items():
            if name in tensors:
                raise WeightError(
                    f"{path}: {name} is in {file} and in {os.path.basename(tensors[name].file)}"
                )
            tensors[name] = info
    if not tensors:
        pickles = [name for name in names if name.endswith(_PICKLES)]
        raise _pickle_refused(pickles) if pickles else WeightError(f"{path} holds no .safetensors file")
    return tensors


def _text_model(
    path: str, config: dict[str, Any], tensors: dict[str, TensorInfo]
) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """The text model of a multimodal checkpoint, under the names of the text-only one.

    `config["text_model_of"]` keeps the outer model_type, so that the plan can say what is left out.
    """
    outer, text = config["model_type"], config.get("text_config")
    if outer not in _TEXT_MODELS or not isinstance(text, Mapping):
        return config, tensors
    model_type, defaults = _TEXT_MODELS[outer]
    inner = {
        key: config[key] for key in ("tie_word_embeddings", "eos_token_id", "bos_token_id") if key in config
    }
    flat = {
        **defaults,
        **inner,
        **text,
        "model_type": text.get("model_type", model_type),
        "text_model_of": outer,
    }
    renames: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        new = remap(name)
        if new in renames:
            raise WeightError(f"{path}: {name} and {renames[new].name} both stand for {new}")
        renames[new] = renamed(info, new)
    embedding = renames.get("model.embed_tokens.weight")
    if embedding is not None and embedding.shape:
        flat.setdefault("vocab_size", embedding.shape[0])
    return flat, renames


def remap(name: str) -> str:
    """A multimodal checkpoint's tensor name -> that of the text-only model (towers keep theirs)."""
    for prefix, replacement in _TEXT_PREFIXES:
        if name.startswith(prefix):
            return replacement + name[len(prefix) :]
    return name


def _json_object(path: str, *, optional: bool = False) -> dict[str, Any]:
    try:
        if optional and not os.path.exists(path):
            return {}
        if os.path.getsize(path) > MAX_JSON_BYTES:
            raise WeightError(f"{path} is larger than {MAX_JSON_BYTES} bytes")
        with open(path, "rb") as file:
            value = json.loads(file.read().decode())
    except OSError as error:
        raise WeightError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise WeightError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WeightError(f"{path} holds {type(value).__name__}, not an object")
    return value


def _chat_template(path: str, tokenizer_config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja beats chat_template.json beats tokenizer_config.json, as in transformers."""
    file = os.path.join(path, "chat_template.jinja")
    if os.path.isfile(file):
        try:
            with open(file, "rb") as opened:
                return opened.read(MAX_JSON_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise WeightError(f"cannot read {file}: {error}") from None
    template = _json_object(os.path.join(path, "chat_template.json"), optional=True).get("chat_template")
    if template is None:
        template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def check_tensors(source: ModelSource, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Compare what a program wants with the headers; one WeightError lists everything that is wrong."""
    have = source.tensors
    missing = [f"{name} {list(shape)}" for name, shape in wanted.items() if name not in have]
    extra = [name for name in have if name not in wanted and not _is_harmless(source, name, wanted)]
    mismatched: list[str] = []
    for name, shape in wanted.items():
        info = have.get(name)
        if info is not None and info.shape != tuple(shape):
            mismatched.append(f"{name} is {list(info.shape)}, not {list(shape)}")
        if info is not None and info.type not in BLOCKS:
            mismatched.append(f"{name} is of type {info.type}, not one of {', '.join(BLOCKS)}")
    problems = (("missing", missing), ("not used by the model", extra), ("mismatched", mismatched))
    if any(items for _, items in problems):
        lines = [f"  {len(items)} {kind}: {_listed(items)}" for kind, items in problems if items]
        raise WeightError(
            "\n".join((f"the tensors of {source.path} do not fit its configuration", *lines)),
            fix="check that config and weights belong together",
        )


def _listed(items: list[str]) -> str:
    rest = f"; and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return "; ".join(items[:_SHOWN]) + rest


def _is_harmless(source: ModelSource, name: str, wanted: Mapping[str, tuple[int, ...]]) -> bool:
    if name == "lm_head.weight":  # a copy beside tied embeddings
        return bool(source.config.get("tie_word_embeddings"))
    if source.config.get("text_model_of") and _OTHER_TOWERS.match(name):
        return True
    return _HARMLESS.fullmatch(name) is not None
