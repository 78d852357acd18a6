"""Random straight-line programs: what the passes are tested on."""

from __future__ import annotations

import random

from octavo.program.builder import ProgramBuilder
from octavo.program.program import Program
from octavo.wire.layout import KVGroup, KVLayout


def random_program(seed: int, length: int) -> Program:
    """A straight line of ops of all arities over buffers of a few widths."""
    rng = random.Random(seed)
    layout = KVLayout(groups=(KVGroup((0,)),), block_size=4, kv_heads=2, head_dim=8, dtype="f32")
    b = ProgramBuilder("random", layout, vocab_size=24)
    known = [b.embed("embed", "embed", 16)]
    for i in range(length):
        x = rng.choice(known[-4:])
        twins = [other for other in known if (other.width, other.rows) == (x.width, x.rows)]
        other = rng.choice(twins)
        kind = rng.choice(
            ["linear", "linear", "triple", "add", "mul", "act", "norm", "gated", "rope", "gather"]
        )
        if kind == "linear":
            known.append(b.linear(f"l{i}", x, f"w{i}", (rng.choice([16, 24, 32]), x.width)))
        elif kind == "triple":
            known += [
                b.linear(f"l{i}.{n}", x, f"w{i}.{n}", (width, x.width)) for n, width in enumerate((16, 8, 8))
            ]
        elif kind == "add":
            known.append(b.add(f"add{i}", x, other))
        elif kind == "mul":
            known.append(b.mul(f"mul{i}", x, other))
        elif kind == "act":
            known.append(b.act(f"act{i}", x, "tanh"))
        elif kind == "norm":
            known.append(b.rms_norm(f"norm{i}", x, f"n{i}", eps=1e-6, group=rng.choice([0, 8])))
        elif kind == "gated":
            gate, up = (b.linear(f"g{i}.{n}", x, f"g{i}.{n}", (24, x.width)) for n in ("gate", "up"))
            known.append(b.silu_mul(f"g{i}.mul", gate, up))
        elif kind == "rope" and x.rows == "tokens":
            known += b.rope(f"rope{i}", x, other, head_dim=8, inv_freq=(1.0, 0.1, 0.01, 0.001))
        elif x.rows == "tokens":
            known.append(b.gather_rows(f"gather{i}", x))
    for name in range(rng.randint(1, 3)):
        b.output(f"out{name}", rng.choice(known))
    return b.build()
