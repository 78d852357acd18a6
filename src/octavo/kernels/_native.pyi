"""The native core of Octavo: see octavo.kernels.native."""

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

def available_isas() -> list[str]:
    """Instruction sets that this CPU can run, best last."""

def kernel_variants() -> list[str]:
    """These, and variants that are never chosen by themselves."""

def best_isa() -> str:
    """The best set, or the one that OCTAVO_ISA names."""

def read_speed(bytes: int, num_threads: int, at_least_s: float) -> float:
    """Bytes per second, the best pass."""

def compute_kinds(isa: str) -> list[str]:
    """Kinds of arithmetic that compute_speed measures."""

def compute_speed(kind: str, isa: str, num_threads: int, at_least_s: float) -> float:
    """Operations per second, the best pass."""

class Weight:
    """A matrix packed for the linear kernels; holds its own memory."""

    @property
    def format(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def interleaved(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def lossless(self) -> bool: ...
    def packed(self) -> NDArray[numpy.uint8]:
        """The packed bytes [nbytes] uint8, in place, to read."""

    def unpack(self) -> NDArray[numpy.float64]:
        """Exact values [rows, cols] float64, in the order of the parts' rows."""

def pack(
    parts: Sequence[tuple[str, NDArray[numpy.uint8], int, int, NDArray[numpy.int32] | None]],
    format: str = "file",
    interleave: bool = False,
    num_threads: int = 1,
) -> Weight: ...

PACKING_VERSION: int

class PackMap:
    """A file of packed matrices, mapped to read; the matrices keep the map."""

    def __init__(self, fd: int, bytes: int) -> None: ...
    def bytes(self) -> NDArray[numpy.uint8]:
        """[bytes] uint8, in place."""

    def weight(
        self, format: str, rows: int, cols: int, interleave: bool, lossless: bool, offset: int
    ) -> Weight:
        """The matrix whose packed bytes begin at `offset`, a multiple of 64."""

def dequantise(
    type: str,
    data: NDArray[numpy.uint8],
    rows: int,
    cols: int,
    order: NDArray[numpy.int32] | None = None,
    num_threads: int = 1,
) -> NDArray[numpy.float32]: ...
def natural_format(type: str) -> str: ...
def is_lossless(type: str, format: str) -> bool: ...
def tensor_types() -> list[str]: ...
def operand_values(x: NDArray[numpy.float32], format: str, isa: str) -> NDArray[numpy.float64]: ...

class Buffer:
    """Columns of the arena."""

    @property
    def width(self) -> int: ...
    @property
    def stride(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def rows(self) -> str: ...

class TeamSize:
    """How many threads are worth using now (team_size.h)."""

    def __init__(self, most: int) -> None: ...
    @property
    def now(self) -> int: ...
    @property
    def changes(self) -> int: ...
    def saw(self, wall_ns: int, work_ns: int) -> None: ...

class Program:
    def __init__(
        self,
        max_tokens: int,
        max_rows: int,
        num_groups: int,
        table_width: int,
        block_size: int,
        vocab: int,
        num_threads: int,
        isa: str,
        arena_bytes: int,
    ) -> None: ...
    def view(self, offset: int, stride: int, width: int, rows: str = "tokens") -> Buffer: ...
    def linear(
        self,
        name: str,
        x: Buffer,
        y: Buffer,
        weight: Weight,
        bias: NDArray[numpy.float32] | None = None,
        residual: Buffer | None = None,
        gate: str = "",
    ) -> None: ...
    def logits(self, name: str, x: Buffer, weight: Weight, softcap: float = 0.0) -> None: ...
    def io(self, name: str) -> NDArray[Any]:
        """A metadata array, in place."""

    def io_names(self) -> list[str]: ...
    def set_array(self, name: str, array: NDArray[Any] | None) -> None: ...
    @property
    def processed_logprobs(self) -> bool: ...
    @processed_logprobs.setter
    def processed_logprobs(self, arg: bool, /) -> None: ...
    @property
    def reports_logits(self) -> bool: ...
    @reports_logits.setter
    def reports_logits(self, arg: bool, /) -> None: ...
    def set_kv(self, array: NDArray[numpy.uint8], block_bytes: int) -> None: ...
    def allocate_kv(self, block_bytes: int, num_blocks: int) -> None: ...
    def kv(self) -> NDArray[numpy.uint8]:
        """[num_blocks, block_bytes] uint8, in place."""

    def set_windows(self, windows: Sequence[int]) -> None: ...
    def run(self, T: int, R: int, S: int, P: int = 0) -> None: ...
    def run_on(self, rows: int) -> None:
        """The step before once more, each of its rows one token further."""

    def redraw(self, rows: Sequence[int]) -> None:
        """Draws again for sampling rows of the step before, from the logits that it kept."""

    def run_logits(self, T: int, R: int, S: int, P: int, out: NDArray[numpy.float32]) -> None: ...
    def array(self, buffer: Buffer, rows: int) -> NDArray[numpy.float32]:
        """Rows of a buffer, in place."""

    def profile(self, on: bool) -> None: ...
    def times(self) -> list[tuple[str, int, int]]:
        """(op, runs, nanoseconds) since profile(True)."""

    @property
    def adaptive(self) -> bool:
        """Whether the thread team may use fewer threads where that gets more done."""

    @adaptive.setter
    def adaptive(self, arg: bool, /) -> None: ...
    def waits(self) -> dict[str, int]:
        """What the threads waited for each other since reset_waits()."""

    def reset_waits(self) -> None: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    def memory(self) -> dict[str, int]:
        """Bytes by name."""

    def embed(
        self, name: str, y: Buffer, type: str, data: NDArray[numpy.uint8], rows: int, scale: float = 1.0
    ) -> None:
        """
        Rows of a table in the file's own format (a ggml type name and its bytes, kept alive).
        """

    def gather_rows(self, name: str, x: Buffer, y: Buffer) -> None: ...
    def add(self, name: str, a: Buffer, b: Buffer, y: Buffer) -> None: ...
    def mul(self, name: str, a: Buffer, b: Buffer, y: Buffer) -> None: ...
    def silu_mul(self, name: str, a: Buffer, b: Buffer, y: Buffer) -> None: ...
    def gelu_mul(self, name: str, a: Buffer, b: Buffer, y: Buffer) -> None: ...
    def scale(self, name: str, x: Buffer, y: Buffer, factor: float) -> None: ...
    def soft_cap(self, name: str, x: Buffer, y: Buffer, cap: float) -> None: ...
    def act(self, name: str, x: Buffer, y: Buffer, fn: str) -> None: ...
    def rms_norm(
        self,
        name: str,
        x: Buffer,
        y: Buffer,
        weight: NDArray[numpy.float32],
        eps: float,
        offset: float = 0.0,
        group: int = 0,
    ) -> None: ...
    def add_rms_norm(
        self,
        name: str,
        x: Buffer,
        residual: Buffer,
        sum: Buffer,
        y: Buffer,
        weight: NDArray[numpy.float32],
        eps: float,
        offset: float = 0.0,
    ) -> None: ...
    def layer_norm(
        self,
        name: str,
        x: Buffer,
        y: Buffer,
        weight: NDArray[numpy.float32],
        bias: NDArray[numpy.float32] | None,
        eps: float,
    ) -> None: ...
    def rope(
        self,
        name: str,
        q: Buffer,
        k: Buffer,
        q_out: Buffer,
        k_out: Buffer,
        head_dim: int,
        rotary_dim: int,
        inv_freq: Sequence[float],
        attention_factor: float = 1.0,
        interleaved: bool = False,
    ) -> None: ...
    def kv_write(
        self,
        name: str,
        k: Buffer,
        v: Buffer,
        group: int,
        index: int,
        kv_heads: int,
        head_dim: int,
        dtype: str,
    ) -> None: ...
    def attend(
        self,
        name: str,
        q: Buffer,
        y: Buffer,
        group: int,
        index: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: str,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: NDArray[numpy.float32] | None = None,
    ) -> None: ...

def sample(logits: NDArray[numpy.float32], batch: object, isa: str = "") -> tuple[Any, ...]:
    """
    Draws from logits [S, vocab] as SamplingBatch says: ids, logprobs, ranks, top ids and logprobs, chosen logprobs.
    """

def score(
    logits: NDArray[numpy.float32],
    targets: NDArray[numpy.int32],
    top: int = 0,
    isa: str = "",
    reports_logits: bool = False,
) -> tuple[Any, ...]:
    """Logprobs and ranks of known tokens, and the `top` best beside each."""

def philox_uniform(seed: int, position: int) -> float:
    """The uniform number in [0, 1) of a draw."""
