"""The engine child: `python -m octavo.launch.engine ORDERS_FD REPORTS_FD PARENT_PID MODEL`.

Started before its parent has a plan: it imports and reads the model's headers meanwhile, then waits
for the plan, builds the engine and runs it. Ends when the order pipe ends, or with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import NoReturn

PR_SET_PDEATHSIG = 1
FORCED_EXIT_S = 3.0  # after the parent has gone, the loop may end by itself for so long


def main(argv: list[str]) -> int:
    orders_fd, reports_fd, parent_pid = (int(word) for word in argv[:3])
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    from octavo import env
    from octavo.errors import OctavoError, UserError
    from octavo.launch import logs
    from octavo.launch.orders import Report, write_line

    logs.set_up()
    with one_blas_thread():
        import numpy  # noqa: F401
    try:
        code = run(orders_fd, reports_fd, argv[3])
    except UserError as error:
        report = Report(cause=error.message, fix=error.fix or "")
    except OctavoError as error:
        report = Report(cause=str(error), fix="OCTAVO_LOG_LEVEL=debug shows more")
    except MemoryError:
        report = Report(
            cause="memory ran out", fix="use a smaller --max-model-len or --kv-cache-memory-bytes"
        )
    except Exception as error:
        report = Report(
            cause=f"{type(error).__name__}: {error}", fix="OCTAVO_LOG_LEVEL=debug shows the traceback"
        )
    else:
        return code
    if env.is_debug():
        traceback.print_exc()
    write_line(reports_fd, report)
    return 1


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """While numpy is imported: its BLAS, which nothing here uses, would make a thread and a buffer for each core."""
    name = "OPENBLAS_NUM_THREADS"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]  # torch, if it comes, has a BLAS of its own


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel for SIGKILL when the parent ends, and checks that it has not ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def run(orders_fd: int, reports_fd: int, model_path: str) -> int:
    """Returns the exit code of an engine that became ready; raises what kept it from that."""
    from octavo.launch.orders import Order, Report, read_line, write_line

    def phase(name: str) -> None:
        write_line(reports_fd, Report(phase=name))

    phase("read headers")
    preload()
    from octavo.weights.load import open_model

    source = open_model(model_path)
    phase("receive the plan")
    line = read_line(orders_fd)
    if not line:  # the parent refused the model and is gone
        return 0
    threading.Thread(target=_exit_with_pipe, args=(orders_fd,), daemon=True).start()

    import msgspec

    from octavo.core.loop import run_engine
    from octavo.launch.build import build_engine
    from octavo.util import collector
    from octavo.wire.heartbeat import Heartbeat
    from octavo.wire.messages import Ready
    from octavo.wire.sockets import EngineEndpoint

    order = msgspec.json.decode(line, type=Order)
    plan = order.plan
    built = build_engine(source, plan, phase)
    endpoints = [EngineEndpoint(line.to_engine, line.from_engine) for line in order.lines]
    ready = Ready(
        max_model_len=plan.scheduler.max_model_len,
        num_blocks=plan.cache.num_blocks,
        block_size=plan.cache.block_size,
        table=built.table,
    )
    collector.settle()
    write_line(reports_fd, Report(ready=ready))
    code = run_engine(built.engine, endpoints, ready, orders_fd, heartbeat=Heartbeat.open(order.heartbeat))
    for endpoint in endpoints:
        endpoint.close()
    built.engine.close()
    return code


def preload() -> None:
    """Imports what the engine will need, while the parent still makes the plan."""
    import octavo.core.loop
    import octavo.launch.build
    import octavo.models.registry
    import octavo.wire.sockets
    import octavo.worker.step
    import octavo.worker.worker  # noqa: F401
    from octavo.errors import ConfigError
    from octavo.executors.registry import create

    with contextlib.suppress(ConfigError):  # not built: the plan, which knows, will name another
        create("native")


def _exit_with_pipe(fd: int) -> NoReturn:
    """The last resort: the pipe has ended, and the loop, which watches it too, has not stopped."""
    import select
    import time

    select.select([fd], [], [])
    time.sleep(FORCED_EXIT_S)
    os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # no teardown: native threads and mappings end with the process
