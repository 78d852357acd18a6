"""The torch executor: the oracle for every kernel test, and the path to other torch devices."""

from __future__ import annotations

from octavo.executors.torch_executor.executor import TorchExecutor

__all__ = ["TorchExecutor"]
