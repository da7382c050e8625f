"""Identifiers. Plain strings and integers with names, so signatures say what they carry."""

from __future__ import annotations

from typing import NewType

PolicyVersion = NewType("PolicyVersion", int)
"""How many batches the policy was trained on, each in one or more optimizer steps.

The starting weights are version 0."""

TaskId = NewType("TaskId", str)
"""One prompt of one epoch, `train/<epoch>/<row>`; unique within a run."""

GroupId = NewType("GroupId", str)
"""The episodes that share a prompt and so a baseline. Data, never inferred from position."""

RequestId = NewType("RequestId", str)
"""One call of `InferenceEngine.generate`; unique among the requests in flight."""
