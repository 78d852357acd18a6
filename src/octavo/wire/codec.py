"""Bytes of a message and back: msgpack by msgspec, typed on the way in. Never pickle."""

from __future__ import annotations

import msgspec

from octavo.errors import OctavoError
from octavo.wire.messages import FromEngine, ToEngine


class MalformedMessageError(OctavoError):
    """Bytes that are no message of ours. The receiver drops them and goes on."""


_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    return _encoder.encode(message)


def encode_value(value: object) -> msgspec.Raw:
    """A plain value (or struct) for `Reply.result`."""
    return msgspec.Raw(_encoder.encode(value))


def decode_value(raw: msgspec.Raw) -> object:
    """What `Reply.result` holds, as plain values."""
    value: object = msgspec.msgpack.decode(raw)
    return value


def decode_to_engine(data: bytes) -> ToEngine:
    """Raises MalformedMessageError."""
    try:
        return _to_engine.decode(data)
    except msgspec.DecodeError as error:
        raise MalformedMessageError(f"no message for the engine: {error}") from error


def decode_from_engine(data: bytes) -> FromEngine:
    """Raises MalformedMessageError."""
    try:
        return _from_engine.decode(data)
    except msgspec.DecodeError as error:
        raise MalformedMessageError(f"no message from an engine: {error}") from error
