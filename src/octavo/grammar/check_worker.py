"""The process that tries grammars: frames in (4-byte big-endian length, msgpack), frames out.

Started by `octavo.grammar.checker`. Its address space is capped, and so is the CPU time of a job, which ends it by a
signal; it ends when stdin ends, too. Whatever else goes wrong in a job is the answer to that job.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from collections import OrderedDict
from typing import Any, BinaryIO

import msgspec

from octavo.grammar.backends import compile_spec
from octavo.grammar.base import GrammarError, Matcher, Vocabulary, digest
from octavo.grammar.checker import CheckJob, CheckReply
from octavo.grammar.vocabulary import unpack
from octavo.wire.sampling import StructuredSpec

_KEPT = 32


def main() -> None:
    limit_memory(int(sys.argv[2]))
    stream, out = sys.stdin.buffer, sys.stdout.buffer
    vocabulary = read_frame(stream)
    if vocabulary is None:
        return
    desk, cpu_s, wall_s = Desk(unpack(vocabulary)), float(sys.argv[3]), float(sys.argv[4])
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)  # ends the process
    write_frame(out, b"ready")
    while (frame := read_frame(stream)) is not None:
        job = msgspec.msgpack.decode(frame, type=CheckJob)
        signal.setitimer(signal.ITIMER_REAL, wall_s)
        desk.prepare(job)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # user and system time of all threads
        reply = desk.answer(job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(out, msgspec.msgpack.encode(reply))


def limit_memory(max_bytes: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))


def read_frame(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    return stream.read(struct.unpack(">I", head)[0])


def write_frame(stream: BinaryIO, data: bytes) -> None:
    stream.write(struct.pack(">I", len(data)) + data)
    stream.flush()


class Desk:
    """Answers jobs, one at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._made: OrderedDict[bytes, Matcher] = OrderedDict()
        self._prepared: set[str] = set()

    def prepare(self, job: CheckJob) -> None:
        """Has the backend make its tables of the vocabulary, which are no part of the cost of a grammar."""
        if job.spec.backend not in self._prepared:
            self._prepared.add(job.spec.backend)
            self.answer(CheckJob(StructuredSpec(kind="regex", text="a", backend=job.spec.backend)))
        if job.text is not None:
            import jsonschema  # noqa: F401 (some tenths of a second, once)

    def answer(self, job: CheckJob) -> CheckReply:
        try:
            matcher = self._matcher(job.spec)
            if job.ids is not None:
                return CheckReply(fault_of(job.spec, matcher, job.ids, job.text))
        except GrammarError as error:
            return CheckReply(error.message, error.keyword, error.pointer)
        except Exception as error:
            return CheckReply(f"{type(error).__name__}: {str(error)[:200]}")
        return CheckReply()

    def _matcher(self, spec: StructuredSpec) -> Matcher:
        key = digest(spec)
        matcher = self._made.get(key)
        if matcher is None:
            matcher = self._made[key] = compile_spec(spec, self._vocabulary)
            if len(self._made) > _KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return matcher.copy()


def fault_of(spec: StructuredSpec, matcher: Matcher, ids: list[int], text: str | None) -> str | None:
    """What is wrong with an answer that ended by itself: by its tokens, and as a document."""
    taken = matcher.advance(ids)
    if taken < len(ids):
        return f"token {taken} of the answer does not follow its grammar"
    if not matcher.is_accepting:
        return "the answer ended before its grammar did"
    if text is None:
        return None
    if spec.kind in ("json_schema", "json_object"):
        return document_fault(spec, text)
    if spec.kind == "choice" and text not in json.loads(spec.text):
        return "the answer is none of the choices"
    return None


def document_fault(spec: StructuredSpec, text: str) -> str | None:
    """What jsonschema, which shares nothing with the backends, says of the text."""
    import jsonschema

    try:
        document = json.loads(text, object_pairs_hook=_pairs)
    except ValueError as error:
        return f"the answer is not JSON: {error}"
    except RecursionError:
        return None  # deeper than this parser goes: its grammar was followed, which is all that is known
    schema: Any = {"type": "object"} if spec.kind == "json_object" else _comparable(json.loads(spec.text))
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        fault = next(iter(kind(schema).iter_errors(document)), None)
    except Exception:  # a pattern that Python's `re` does not know: the grammar was followed all the same
        return None
    return None if fault is None else f"the answer does not follow its schema: {fault.message[:200]}"


def _comparable(schema: Any) -> Any:
    """Without what binary fractions cannot decide: is 1.128 a multiple of 0.001?"""
    if isinstance(schema, list):
        return [_comparable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _comparable(value)
        for key, value in schema.items()
        if not (key == "multipleOf" and isinstance(value, float))
    }


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) != len(items):
        raise ValueError("a key is repeated")
    return found
