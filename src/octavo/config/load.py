"""The one loader: command line, YAML file and keywords all become an `Asked` here.

Every source is reduced to {field name: raw value}; `convert` turns a raw value into the field's
type with one set of rules, so that a value means the same wherever it is written.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from octavo import env
from octavo.config.asked import ENGINE_TOPICS, TOPICS, Asked, options, verify
from octavo.config.known import refused_flags, why_refused
from octavo.config.option import Option
from octavo.errors import ConfigError

_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)([kmgtKMGT]?)")


# ---- values -----------------------------------------------------------------------------------------


def convert(option: Option, raw: Any, where: str, *, as_flag: bool = True) -> Any:
    """`raw` as the option's type. Raises ConfigError that says what was given and what is allowed.

    `as_flag`: the error names the option --x-y, else x_y.
    """
    if raw is None or (raw in ("", "None", "none", "null") and option.default is None and not option.choices):
        return option.default
    try:
        value = _CONVERTERS[option.kind](option, raw)
    except (ValueError, TypeError):
        raise _bad_value(option, raw, where, as_flag) from None
    if isinstance(value, int | float) and not isinstance(value, bool) and not option.is_in_bounds(value):
        raise _bad_value(option, raw, where, as_flag)
    return value


def _bad_value(option: Option, raw: Any, where: str, as_flag: bool) -> ConfigError:
    shown = "(hidden)" if option.doc.secret else repr(raw) if isinstance(raw, str) else raw
    fix = f"allowed is {option.allowed}"
    close = difflib.get_close_matches(str(raw), [str(c) for c in option.choices], 1)
    if close:
        fix += f"; did you mean {close[0]}?"
    return ConfigError(f"{where}{option.flag if as_flag else option.name} is {shown}", fix=fix)


def _to_int(option: Option, raw: Any) -> int:
    if isinstance(raw, bool):
        raise TypeError
    if isinstance(raw, int):
        return raw
    if isinstance(raw, float):
        if raw != int(raw):
            raise ValueError
        return int(raw)
    if option.doc.auto and raw.lower() == "auto":
        return -1
    match = _NUMBER.fullmatch(raw.strip())
    if match is None:
        raise ValueError
    value = float(match[1]) * _SUFFIX[match[2]] if match[2] else int(match[1])
    if value != int(value):
        raise ValueError
    return int(value)


def _to_float(option: Option, raw: Any) -> float:
    if isinstance(raw, bool):
        raise TypeError
    return float(raw)


def _to_str(option: Option, raw: Any) -> str:
    if isinstance(raw, dict | list | tuple | bool):
        raise TypeError
    return str(raw)


def _to_bool(option: Option, raw: Any) -> bool:
    words = {"true": True, "false": False}
    if isinstance(raw, bool):
        return raw
    return words[raw.lower()] if isinstance(raw, str) and raw.lower() in words else _raise()


def _to_list(option: Option, raw: Any) -> tuple[str, ...]:
    items = list(raw) if isinstance(raw, list | tuple) else [raw]
    if len(items) == 1 and isinstance(items[0], str) and items[0].startswith("["):
        items = json.loads(items[0])
    if not all(isinstance(i, str | int | float) and not isinstance(i, bool) for i in items):
        raise TypeError
    return tuple(str(i) for i in items)


def _to_json(option: Option, raw: Any) -> dict[str, Any]:
    value = json.loads(raw, object_pairs_hook=_once_each) if isinstance(raw, str) else raw
    return dict(value) if isinstance(value, Mapping) else _raise()


def _is_object(raw: Any) -> bool:
    try:
        return isinstance(json.loads(raw) if isinstance(raw, str) else raw, Mapping)
    except ValueError:
        return False


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError(f"the key {key!r} is given twice in a JSON object", fix="leave one of them out")
        found[key] = value
    return found


def _to_choice(option: Option, raw: Any) -> str | int:
    for choice in option.choices:
        if str(raw) == str(choice):
            return choice
    return _raise()


def _raise() -> NoReturn:
    raise ValueError


_CONVERTERS: dict[str, Callable[[Option, Any], Any]] = {
    "int": _to_int,
    "float": _to_float,
    "str": _to_str,
    "bool": _to_bool,
    "list": _to_list,
    "json": _to_json,
    "choice": _to_choice,
}


# ---- names ------------------------------------------------------------------------------------------


def unknown_option(
    name: str, where: str, topics: tuple[str, ...], *, as_flag: bool = True, prog: str = "octavo serve"
) -> ConfigError:
    """The error for an option that `prog` does not have: a reason, or the nearest one that it does have."""
    flag = name if name.startswith("-") else "--" + name.replace("_", "-")
    shown = flag if as_flag else name
    reason = why_refused(flag)
    if reason is not None:
        return ConfigError(f"{where}{shown} is a flag of vLLM that Octavo refuses", fix=reason)
    absent = f"{where}{shown} is not an option" + (f" of `{env.command_of(prog)}`" if as_flag else "")
    if flag == "--version":
        return ConfigError(absent, fix=f"`{env.command('--version')}` shows the version")
    known = [o.flag for o in options(topics).values()]
    elsewhere = {spelling: o for o in options().values() for spelling in o.spellings}.get(flag)
    if elsewhere is not None and elsewhere.topic not in topics:
        return ConfigError(absent, fix=f"only `{env.command('serve')}` has it")
    close = difflib.get_close_matches(flag, known, 1, cutoff=0.75)  # the dashes alone make 0.67 of short ones
    if close:
        hint = close[0] if as_flag else close[0].removeprefix("--").replace("-", "_")
        return ConfigError(absent, fix=f"did you mean {hint}?")
    return ConfigError(absent, fix=f"`{env.command_of(prog)} --help` lists them all")


def asked_from(
    values: Mapping[str, Any],
    where: str | Mapping[str, str] = "",
    topics: tuple[str, ...] = tuple(TOPICS),
    *,
    as_flags: bool = True,
) -> Asked:
    """An `Asked` from {field name: raw value}. Raises ConfigError for unknown names and bad values.

    `where` begins every error; as a mapping, those of the fields that it names.
    """
    known = options(topics)
    chosen: dict[str, dict[str, Any]] = {topic: {} for topic in TOPICS}
    for name, raw in values.items():
        option, place = known.get(name), where if isinstance(where, str) else where.get(name, "")
        if option is None:
            raise unknown_option(name, place, topics, as_flag=False)
        chosen[option.topic][option.name] = convert(option, raw, place, as_flag=as_flags)
    asked = Asked(**{topic: TOPICS[topic](**fields) for topic, fields in chosen.items()})  # type: ignore[arg-type]
    verify(asked)
    return asked


def from_keywords(model: str | None, keywords: Mapping[str, Any]) -> Asked:
    """For `LLM(model, **keywords)`: the same names as the flags, with underscores."""
    return asked_from({"model": model, **keywords}, "LLM: ", ENGINE_TOPICS, as_flags=False)


def read_yaml(path: str, topics: tuple[str, ...], prog: str = "octavo serve") -> dict[str, Any]:
    """{field name: raw value} of a --config file: one flat mapping of flag names."""
    import yaml

    if not path.endswith((".yaml", ".yml")):
        raise ConfigError(f"--config is {path!r}; it must be a .yaml or .yml file")
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), _yaml_loader())
    except OSError as error:
        raise ConfigError(
            f"--config {path} cannot be read ({error.strerror})", fix="check the path"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path} is not YAML: {_yaml_fault(error)}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"--config {path} is not YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"--config {path} holds a {type(content).__name__}; it must be a mapping of flag names"
        )
    by_flag = {spelling.lstrip("-"): o.name for o in options(topics).values() for spelling in o.spellings}
    values: dict[str, Any] = {}
    for key, value in content.items():
        flag = str(key).lstrip("-").replace("_", "-")
        if flag not in by_flag:
            raise unknown_option("--" + flag, f"{path}: ", topics, prog=prog)
        if by_flag[flag] in values:
            raise ConfigError(f"{path}: {flag} is given twice", fix="leave one of them out")
        values[by_flag[flag]] = value
    return values


def _yaml_loader() -> Any:
    """PyYAML's safe loader, which by itself keeps the last of two equal keys and says nothing."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"{key.value} is given twice", key.start_mark
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader


def _yaml_fault(error: Exception) -> str:
    """What is wrong, and where, on one line: PyYAML's own text draws the place over several."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


# ---- command line -----------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """argparse whose errors are ConfigErrors: one line, with a fix."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, fix=f"`{env.command_of(self.prog)} --help` shows what is allowed")


class _Given(argparse.Action):
    """Stores a raw value under the field's name; only what was given is stored."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self.nargs == 0:
            values = not (option_string or "").startswith("--no-")
        given: dict[str, Any] = namespace.given
        given[self.dest] = values


def add_options(parser: argparse.ArgumentParser, topics: tuple[str, ...]) -> None:
    """Adds the flags of `topics`, one help group each, and --config."""
    parser.add_argument("--config", metavar="FILE", help="YAML file of flags; the command line wins over it")
    for topic in topics:
        group = parser.add_argument_group(topic)
        for option in options((topic,)).values():
            names = list(option.spellings)
            extra: dict[str, Any] = {}
            if option.kind == "bool":
                extra["nargs"] = 0
                if not option.doc.flag_only:
                    names.append("--no-" + option.flag.removeprefix("--"))
            else:
                extra["metavar"] = {"choice": "NAME", "list": "VALUE"}.get(option.kind, option.kind.upper())
                if option.kind == "list":
                    extra["nargs"] = "+"
            group.add_argument(*names, dest=option.name, action=_Given, help=_help(option), **extra)


def _help(option: Option) -> str:
    text = option.doc.text
    if option.kind == "choice":
        text += f" Allowed: {option.allowed}."
    if option.kind != "bool" or option.default:
        text += f" Default: {shown_default(option)}."
    return text.replace("%", "%%")


def shown_default(option: Option) -> str:
    """The default as documents show it."""
    if option.default is None or option.default == ():
        return option.doc.unset or "none"
    if option.kind == "bool":
        return "on" if option.default else "off"
    if option.kind == "json":
        return "{}"
    return " ".join(option.default) if option.kind == "list" else str(option.default)


def normalise(argv: Sequence[str]) -> list[str]:
    """Underscores in flag names become dashes: --max_model_len is --max-model-len."""
    changed = []
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            flag, equals, value = word.partition("=")
            head, dot, tail = flag.partition(".")
            changed.append(head.replace("_", "-") + dot + tail + equals + value)
        else:
            changed.append(word)
    return changed


def take_subkeys(
    words: Sequence[str], topics: tuple[str, ...]
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Splits --flag.key VALUE of flags that take JSON: (the other words, {field name: {key: value}}).

    A value is JSON where it can be, else text; --flag.a.b VALUE sets b of a.
    """
    names = {o.flag: o.name for o in options(topics).values() if o.kind == "json"}
    rest: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    left = iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        stem, *keys = flag.split(".")
        if stem not in names or not keys:
            rest.append(word)
            continue
        raw = value if equals else next(left, None)
        if raw is None or not all(keys):
            raise ConfigError(f"{flag} has no {'key' if raw else 'value'}", fix=f"write {stem}.KEY VALUE")
        place = found.setdefault(names[stem], {})
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{flag} goes through {key}, which is a value", fix="give one of the two")
        place[keys[-1]] = _json_or_text(raw)
    return rest, found


def _json_or_text(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw


def parse(parser: Parser, argv: Sequence[str], topics: tuple[str, ...]) -> tuple[Asked, argparse.Namespace]:
    """Parses a command line that may hold the options of `topics` (see `add_options`) and a MODEL.

    A flag that nobody knows raises ConfigError with the reason, or with the nearest flag.
    """
    words, subkeys = take_subkeys(normalise(argv), topics)
    for word in words:  # before argparse, which would take -dc for a short form of -dcp
        if word.startswith("-") and word in refused_flags():
            raise unknown_option(word, "", topics, prog=parser.prog)
    namespace, unknown = parser.parse_known_args(words, argparse.Namespace(given={}))
    for word in unknown:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            raise unknown_option(word.partition("=")[0], "", topics, prog=parser.prog)
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is one argument too many",
            fix=f"`{env.command_of(parser.prog)} --help` shows the form",
        )
    values = read_yaml(namespace.config, topics, parser.prog) if namespace.config else {}
    given: dict[str, Any] = namespace.given
    for name, keys in subkeys.items():
        whole = given.get(name, {})
        given[name] = {**_to_json(options(topics)[name], whole), **keys} if _is_object(whole) else whole
    positional = getattr(namespace, "model_tag", None)
    if positional is not None:
        if given.get("model", positional) != positional:
            raise ConfigError(
                f"the model is given twice, as {positional!r} and as --model {given['model']!r}",
                fix="leave one of them out",
            )
        given["model"] = positional
    where = {name: f"{namespace.config}: " for name in values if name not in given}
    return asked_from(values | given, where, topics), namespace
